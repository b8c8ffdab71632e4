"""What a run came to: its summary, and the lines that say so."""

from __future__ import annotations

from pathlib import Path

from ale_jax.monitor.evaluations import (
    EVALUATIONS_FILE,
    FINAL,
    WARM_START,
    Evaluation,
    FamilyResult,
    Summary,
    read_evaluations,
    wilson_interval,
)
from ale_jax.monitor.metrics import METRICS_FILE, read_metrics
from ale_jax.system.actors.rollout_workers import WorkerCounts
from ale_jax.system.config import RunConfig
from ale_jax.system.tasks import Cursor


def summarize(
    config: RunConfig, workdir: Path, cursor: Cursor, counts: WorkerCounts, seconds: float
) -> Summary:
    """The run's summary, from the records in `workdir` and the counts of its parts."""
    evaluations = {e.name: e for e in read_evaluations(workdir / EVALUATIONS_FILE)}
    before, after = evaluations[WARM_START], evaluations[FINAL]
    lines = read_metrics(workdir / METRICS_FILE).records
    steps = [line for line in lines if line["phase"] == "rl"]
    supervised = max((line["seconds"] for line in lines if line["phase"] == "sft"), default=0.0)
    reinforced = sum(line["time/waiting_s"] + line["time/learner_s"] for line in steps)
    return Summary(
        algorithm=config.algo.name,
        config=config.name,
        seed=config.seed,
        success_warm_start=_rate(before.total(held_out=False)),
        success_final=_rate(after.total(held_out=False)),
        success_held_out_families=_rate(after.total(held_out=True)),
        success_warm_start_families={f: _rate(r) for f, r in before.families.items()},
        success_final_families={f: _rate(r) for f, r in after.families.items()},
        eval_tasks=after.total(held_out=False).tasks,
        seconds_total=seconds,
        seconds_train=supervised + reinforced,
        episodes=cursor.episodes,
        policy_tokens=cursor.policy_tokens,
        trajectories_dropped_stale=cursor.dropped_stale,
        max_staleness=cursor.max_staleness,
        sandbox_failures=counts.sandbox_failures,
        actor_restarts=counts.actor_restarts,
    )


def evaluation_line(evaluation: Evaluation) -> str:
    """One line for people: successes with their 95 % interval, held-out families apart."""
    parts = [_line("trained families", evaluation.total(held_out=False))]
    held_out = evaluation.total(held_out=True)
    if held_out.tasks:
        parts.append(_line("held-out families", held_out))
    return f"{evaluation.name} (step {evaluation.step}): " + "; ".join(parts)


def headline(summary: Summary) -> str:
    return (
        f"success {_percent(summary.success_warm_start)} after the warm start, "
        f"{_percent(summary.success_final)} at the end, {summary.episodes} episodes, "
        f"{summary.seconds_total / 60:.1f} minutes"
    )


def _rate(result: FamilyResult) -> float | None:
    return result.successes / result.tasks if result.tasks else None


def _percent(rate: float | None) -> str:
    return "not measured" if rate is None else f"{rate:.1%}"


def _line(name: str, result: FamilyResult) -> str:
    if not result.tasks:
        return f"{name}: not evaluated"
    low, high = wilson_interval(result.successes, result.tasks)
    rate = result.successes / result.tasks
    return f"{name} {result.successes}/{result.tasks} = {rate:.1%} [{low:.0%}, {high:.0%}]"

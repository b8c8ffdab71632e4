"""Everything that a run shows or records: progress, metrics, events, trajectories, and at the end
its summary."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from ale_jax.config.algo import MismatchHypers
from ale_jax.config.run import RunConfig
from ale_jax.data.replay import DroppedGroup
from ale_jax.data.staleness import Drop
from ale_jax.files import read_json, write_json
from ale_jax.learn.critics import CRITIC_SKIPPED
from ale_jax.monitor.evaluations import (
    EVALUATIONS_FILE,
    FINAL,
    WARM_START,
    Evaluation,
    FamilyResult,
    Summary,
    cut_episodes,
    cut_evaluations,
    read_evaluations,
    wilson_interval,
)
from ale_jax.monitor.events import (
    ACTOR_LOST,
    ATTEMPT_FAILED,
    CONFIG_CHANGED,
    EVENTS_FILE,
    GROUP_DROPPED,
    GROUP_REOPENED,
    HISTORY_REWRITTEN,
    NOT_SHOWN,
    NOTHING_TRAINED,
    WORLDS_CHANGED,
    EventLog,
    dropped_groups,
    readable_events,
)
from ale_jax.monitor.metrics import METRICS_FILE, MetricsWriter, read_metrics
from ale_jax.monitor.progress import make_progress
from ale_jax.monitor.schedule import ScheduleWriter
from ale_jax.monitor.times import AttemptTimes, TimesWriter
from ale_jax.monitor.trajectories import TrajectoryWriter
from ale_jax.records import Task
from ale_jax.status import Status
from ale_jax.system.compilation import Compilations
from ale_jax.system.reply_metrics import BRANCHING
from ale_jax.system.rollouts.workers import RolloutWorkers
from ale_jax.system.step_metrics import StepReport, step_metrics, step_schedule, step_times
from ale_jax.system.tasks import Cursor
from ale_jax.system.trajectory_samples import trajectory_samples
from ale_jax.worlds.digests import differing

# Events that are shown in the terminal, too: what makes a run slower, or its results smaller.
SHOWN = (
    *(ACTOR_LOST, "thread_stuck", "actors_unplaced", "episodes_paused", "episodes_resumed"),
    *(GROUP_DROPPED, HISTORY_REWRITTEN, NOTHING_TRAINED, "stalled", "checkpoint_failed"),
    *(WORLDS_CHANGED, "recorded_data", "warm_start_ended", "preferences_ended"),
    "items_selected",
)
WORLDS_FILE = "world_digests.json"  # a digest of each family
MAX_UNSEEN = 100  # names of what agents send, which they may make up
MOSTLY = 0.5  # of an agent's replies: this is how it works, and no branch now and then
NONE_BACK = "none came back"
SANDBOX_FAILURES = (Status.SANDBOX_START_FAILED.value, Status.SANDBOX_LOST.value)


class RunLogger:
    """Opens the run's records, and removes what was written after the checkpoint from which the
    run is resumed, but for events.

    checkpoint_step: RL step of that checkpoint; None if there is none.
    """

    def __init__(
        self,
        workdir: Path,
        checkpoint_step: int | None,
        clock: Callable[[], float] = time.monotonic,
    ):
        cut_evaluations(workdir, checkpoint_step)
        cut_episodes(workdir, checkpoint_step)
        # Without a checkpoint the warm start is repeated, and so are its metrics.
        step, phase = (0, None) if checkpoint_step is None else (checkpoint_step, "rl")
        with contextlib.ExitStack() as stack:
            self.events = stack.enter_context(EventLog(workdir))
            self.metrics = stack.enter_context(
                MetricsWriter(workdir, resume_step=step, resume_phase=phase)
            )
            self._schedule = stack.enter_context(ScheduleWriter(workdir, resume_step=step))
            self._times = stack.enter_context(TimesWriter(workdir, clock))
            self._trajectories = stack.enter_context(TrajectoryWriter(workdir, resume_step=step))
            self.progress = stack.enter_context(make_progress(sys.stdout))
            self._compilations = stack.enter_context(Compilations(self.progress))
            self._stack = stack.pop_all()
        self._workdir, self._clock = workdir, clock
        self._sampled_tokens = 0
        self._looked = clock()
        self._has_warned = False
        self._unseen: set[str] = set()

    def __enter__(self) -> RunLogger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def note_resumed(self, cursor: Cursor, changes: str) -> None:
        """Records that the run goes on at `cursor`, with which changes of its config, and which
        groups are played again though they were dropped: after that checkpoint."""
        step = cursor.step
        self.events.record("resumed", f"from the checkpoint of step {step}", step=step)
        if changes:
            self.events.record(CONFIG_CHANGED, changes, step=step)
        for event in dropped_groups(readable_events(self._workdir / EVENTS_FILE)):
            group = event.fields.get("group")
            if isinstance(group, int) and cursor.is_open(group):
                detail = f"group {group} was dropped after that, and is played again"
                self.events.record(GROUP_REOPENED, detail, group=group)

    def note_worlds(self, digests: Mapping[str, str]) -> None:
        """Writes down what the families are, and records which are others than when the run was
        last here."""
        path = self._workdir / WORLDS_FILE
        before = read_json(path) if path.exists() else {}
        if changed := differing(before, digests):
            self.record(
                WORLDS_CHANGED,
                f"{', '.join(changed)}: code or items are others than before; what is compared "
                "across this point is not the same",
            )
        write_json(path, dict(digests))

    def rollouts_begin(self) -> None:
        """Starts the time in which the tokens of the first step are sampled."""
        self._looked = self._clock()

    def attempt(self, times: AttemptTimes) -> None:
        """Records when an attempt at an episode began and ended, on the logger's clock."""
        self._times.attempt(times)

    def note(self, text: str) -> None:
        self.progress.note(text)

    def evaluation(self, evaluation: Evaluation) -> None:
        """Shows a recorded evaluation as a line, and as points of TensorBoard's curves."""
        self.note(evaluation_line(evaluation))
        groups = {"eval/held_out": evaluation.total(held_out=True)}
        groups |= {"eval": evaluation.total(held_out=False)}
        groups |= {f"eval/{family}": found for family, found in evaluation.families.items()}
        values: dict[str, float] = {}
        for name, found in groups.items():
            if found.tasks:
                values[f"{name}/success"] = found.successes / found.tasks
                values[f"{name}/reward"] = found.reward
        self.metrics.draw(evaluation.step, values, "eval")

    def record(self, kind: str, detail: str, **fields: str | int) -> None:
        """Shows an event if whoever watches the run should know, and records it. OSError if it
        cannot be recorded."""
        if kind in SHOWN:
            self.note(f"{kind.replace('_', ' ')}: {detail}")
        self.events.record(kind, detail, **fields)

    def warm_start_step(self, step: int, values: dict[str, float]) -> None:
        self.metrics.log(step, values | self._compile_time(), "sft")
        self.progress.update(step, loss=values["loss"], success=values.get("probe_success"))

    def preference_step(self, step: int, values: dict[str, float]) -> None:
        self.metrics.log(step, values | self._compile_time(), "dpo")
        self.progress.update(step, loss=values["loss"])

    def rl_step(
        self,
        report: StepReport,
        workers: RolloutWorkers,
        sampled_tokens: int,
        logp_diff_limit: float,
    ) -> dict[str, Any]:
        """Records a step of reinforcement learning; returns its metrics. logp_diff_limit: a larger
        mean difference between the log-probabilities of learner and engine is recorded as an
        event."""
        now = self._clock()
        rate = (sampled_tokens - self._sampled_tokens) / max(now - self._looked, 1e-6)
        self._sampled_tokens, self._looked = sampled_tokens, now
        speeds = report.made.read_speed() | {"tokens_per_second": rate}
        values = step_metrics(report) | speeds | self._compile_time()
        self.metrics.log(report.cursor.step, values, "rl")
        self._schedule.write(step_schedule(report))
        self._times.step(step_times(report, now, values["time/compile_s"]))
        for metric, whose in (("skipped_updates", "policy's"), (CRITIC_SKIPPED, "critics'")):
            if skipped := values.get(metric):
                why = "loss, gradient or weights were not finite"
                detail = f"{skipped:.0f} of the {whose} updates: {why}"
                self.events.record("update_skipped", detail, step=report.cursor.step)
        logp_diff = values.get("train_rollout_logp_diff", 0.0)
        if not logp_diff <= logp_diff_limit:  # also true if it is NaN
            detail = (
                f"log-probabilities of learner and engine differ by {logp_diff:.2g} per token, "
                f"more than {logp_diff_limit:g}"
            )
            self.events.record("train_rollout_logp_diff", detail, step=report.cursor.step)
        self._note_branching(values[BRANCHING], report.cursor.step)
        self._note_unseen(report)
        counts = workers.counts
        self.progress.update(
            report.cursor.step,
            success=values["success"],
            reward=values["reward"],
            loss=values.get("loss"),
            staleness_mean=values["staleness_mean"],
            staleness_max=values["staleness_max"],
            tokens_per_second=rate,
            episodes=report.cursor.episodes,
            sandboxes_up=counts.sandboxes_up,
            sandboxes_busy=counts.sandboxes_busy,
            sandboxes_restarted=counts.sandboxes_restarted,
        )
        return values

    def _note_branching(self, branching: float, step: int) -> None:
        """Warns once that the agent rewrites its history."""
        if branching < MOSTLY or self._has_warned:
            return
        self._has_warned = True
        self.record(
            HISTORY_REWRITTEN,
            f"{branching:.0%} of the replies after an episode's first do not continue a "
            "conversation: the agent changes what it has told before, so that each is trained in a "
            "context of its own, which is read anew. Keep all before the newest message as it was: "
            "system prompt, tools, reminders and the policy's own replies",
            step=step,
        )

    def _note_unseen(self, report: StepReport) -> None:
        """Says once of each thing that agents send it, and the policy does not see it."""
        members = (member for group in report.groups for member in group.members)
        names = {name for member in members for name in member.calls.unseen} - self._unseen
        if not names or len(self._unseen) >= MAX_UNSEEN:
            return
        self._unseen |= names
        detail = (
            f"{', '.join(sorted(names))}: the agent sent this, and the policy is not shown it, as "
            "it reads text and calls functions"
        )
        self.events.record(NOT_SHOWN, detail, step=report.cursor.step)

    def note_dropped(self, group: DroppedGroup, task: Task) -> None:
        """Records that a group is not trained on, which task it was, and how its episodes ended."""
        if group.reason == Drop.EQUAL:
            return  # nothing was lost: it is counted in the metrics
        counts = Counter(trajectory.episode.status.value for trajectory in group.members)
        statuses = ", ".join(f"{count} {status}" for status, count in counts.most_common())
        statuses = statuses or NONE_BACK
        why = next((t.episode.detail for t in group.members if t.episode.detail), "")
        # Stale groups belong to asynchronous runs; failed ones are a loss that can be mended.
        record = self.record if group.reason == Drop.FAILED else self.events.record
        record(
            GROUP_DROPPED,
            f"task {task.item} of {task.family}: {statuses}" + f" ({why})" * bool(why),
            group=group.index,
            reason=group.reason.value,
            family=task.family,
            item=task.item,
            statuses=statuses,
        )

    def _compile_time(self) -> dict[str, float]:
        """Compile time since the last line of metrics."""
        return {"time/compile_s": self._compilations.take_seconds()}

    def sample_trajectories(self, report: StepReport, hp: MismatchHypers) -> None:
        """Records the trajectories that `trajectory_samples` chooses."""
        for sample in trajectory_samples(report, hp):
            self._trajectories.write(sample)


def summarize(config: RunConfig, workdir: Path, cursor: Cursor, seconds: float) -> Summary:
    """Returns the run's summary, from the records in `workdir` and `cursor`."""
    failed_sandboxes, lost_actors = _losses(workdir)
    evaluations = {e.name: e for e in read_evaluations(workdir / EVALUATIONS_FILE)}
    before, after = evaluations[WARM_START], evaluations[FINAL]
    lines = read_metrics(workdir / METRICS_FILE).records
    steps = [line for line in lines if line["phase"] == "rl"]
    warm = [line for line in lines if line["phase"] in ("sft", "dpo")]
    supervised = max((line["seconds"] for line in warm), default=0.0)
    reinforced = sum(line["time/waiting_s"] + line["time/learner_s"] for line in steps)
    return Summary(
        algorithm=config.algo.name,
        config=config.name,
        seed=config.seed,
        success_warm_start=_rate(before.total(held_out=False)),
        success_final=_rate(after.total(held_out=False)),
        success_held_out_families=_rate(after.total(held_out=True)),
        reward_warm_start=_reward(before.total(held_out=False)),
        reward_final=_reward(after.total(held_out=False)),
        reward_held_out_families=_reward(after.total(held_out=True)),
        success_warm_start_families={f: _rate(r) for f, r in before.families.items()},
        success_final_families={f: _rate(r) for f, r in after.families.items()},
        eval_tasks=after.total(held_out=False).tasks,
        warm_start_steps=len(warm),
        rl_steps=len(steps),
        rl_steps_trained=sum(line["updates_with_gradient"] > 0 for line in steps),
        seconds_total=seconds,
        seconds_train=supervised + reinforced,
        episodes=cursor.episodes,
        policy_tokens=cursor.policy_tokens,
        trajectories_dropped_stale=cursor.dropped_stale,
        max_staleness=cursor.max_staleness,
        sandbox_failures=failed_sandboxes,
        actor_restarts=lost_actors,
    )


def _losses(workdir: Path) -> tuple[int, int]:
    """Attempts whose sandbox failed, and lost actors, by the events, which are of the whole run."""
    failed = lost = 0
    for event in readable_events(workdir / EVENTS_FILE):
        status = event.fields.get("status")
        failed += event.kind == ATTEMPT_FAILED and status in SANDBOX_FAILURES
        lost += event.kind == ACTOR_LOST
    return failed, lost


def evaluation_line(evaluation: Evaluation) -> str:
    """Returns one line to print: successes with their 95 % interval and mean reward, separately for
    held-out families."""
    parts = [_line("trained families", evaluation.total(held_out=False))]
    held_out = evaluation.total(held_out=True)
    if held_out.tasks:
        parts.append(_line("held-out families", held_out))
    return f"{evaluation.name} (step {evaluation.step}): " + "; ".join(parts)


def headline(summary: Summary) -> str:
    return (
        f"success {_percent(summary.success_warm_start)} after the warm start, "
        f"{_percent(summary.success_final)} at the end (mean reward "
        f"{summary.reward_final or 0.0:.3g}), {summary.episodes} episodes, "
        f"{summary.seconds_total / 60:.1f} minutes"
    )


def _rate(result: FamilyResult) -> float | None:
    return result.successes / result.tasks if result.tasks else None


def _reward(result: FamilyResult) -> float | None:
    return result.reward if result.tasks else None


def _percent(rate: float | None) -> str:
    return "not measured" if rate is None else f"{rate:.1%}"


def _line(name: str, result: FamilyResult) -> str:
    if not result.tasks:
        return f"{name}: not evaluated"
    low, high = wilson_interval(result.successes, result.tasks)
    rate = result.successes / result.tasks
    success = f"{result.successes}/{result.tasks} = {rate:.1%} [{low:.0%}, {high:.0%}]"
    return f"{name} {success}, mean reward {result.reward:.3g}"

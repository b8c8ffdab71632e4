"""Builds the directory of a run that never ran, small and the same every time."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

from ale_jax.files import write_json
from ale_jax.monitor.evaluations import (
    Evaluation,
    FamilyResult,
    Summary,
    write_evaluations,
    write_summary,
)
from ale_jax.monitor.events import EventLog
from ale_jax.monitor.metrics import MetricsWriter
from ale_jax.monitor.trajectories import TrajectorySample, TrajectoryWriter, TurnSample
from ale_jax.status import Status

SFT_STEPS, RL_STEPS = 40, 160

SUMMARY = Summary(
    algorithm="ipa",
    config="configs/quickstart.py",
    seed=7,
    success_warm_start=23 / 120,
    success_final=98 / 120,
    success_held_out_families=0.55,
    reward_warm_start=23 / 120,
    reward_final=98 / 120,
    reward_held_out_families=0.55,
    success_warm_start_families={"count_lines": 0.3, "rename_files": 0.1},
    success_final_families={"count_lines": 0.9, "rename_files": 0.7},
    eval_tasks=120,
    warm_start_steps=40,
    rl_steps=160,
    rl_steps_trained=158,
    seconds_total=812.0,
    seconds_train=655.0,
    episodes=5120,
    policy_tokens=413_221,
    trajectories_dropped_stale=14,
    max_staleness=3,
    sandbox_failures=3,
    actor_restarts=1,
)

EVALUATIONS = (
    Evaluation(
        "warm_start",
        SFT_STEPS,
        150.0,
        {
            "count_lines": FamilyResult(12, 40, False, 0.3),
            "rename_files": FamilyResult(4, 40, False, 0.1),
            "sum_column": FamilyResult(7, 40, False, 0.175),
            "find_largest": FamilyResult(5, 40, True, 0.125),
        },
    ),
    Evaluation(
        "final",
        RL_STEPS,
        800.0,
        {
            "count_lines": FamilyResult(37, 40, False, 0.925),
            "rename_files": FamilyResult(28, 40, False, 0.7),
            "sum_column": FamilyResult(33, 40, False, 0.825),
            "find_largest": FamilyResult(22, 40, True, 0.55),
        },
    ),
)

SOLVED = TrajectorySample(
    step=150,
    family="rename_files",
    item=4711,
    status=Status.FINISHED,
    reward=1.0,
    solved=True,
    start_version=148,
    trained_version=150,
    turns=(
        TurnSample(
            "You work in a shell. Rename every .txt file in notes to .md, and say done.\n",
            "ls notes",
            0.3,
            True,
            6,
            0.31,
            1.02,
            -0.21,
        ),
        TurnSample("a.txt  b.txt  c.log\n[exit 0]", "cd notes", -0.4, True, 5, -0.04, 0.98, -0.6),
        TurnSample(
            "[exit 0]",
            'for f in *.txt; do mv "$f" "${f%.txt}.md"; done',
            0.83,
            True,
            27,
            0.92,
            1.11,
            -0.34,
        ),
        TurnSample("[exit 0]", "done", 0.55, False, 2, 0.0, 0.41, -0.02),
    ),
)
FAILED = dataclasses.replace(
    SOLVED,
    status=Status.TURN_LIMIT,
    reward=0.0,
    solved=False,
    turns=(
        dataclasses.replace(SOLVED.turns[0], advantage=-0.12, credit=-0.012),
        TurnSample(
            "a.txt  b.txt  c.log\n[exit 0]", "mv *.txt *.md", -1.1, True, 9, -0.88, 1.3, -0.8
        ),
        TurnSample(
            "mv: target '*.md' is not a directory\n[exit 1]", "ls", -0.3, True, 3, None, None, None
        ),
    ),
)
OTHER = dataclasses.replace(SOLVED, family="count_lines", step=140, turns=SOLVED.turns[2:])

CONFIG = {"seed": 7, "algo": {"name": "ipa", "gamma": 0.95}, "model": {"layers": 4, "experts": 8}}


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def write_run(workdir: Path) -> Path:
    """Writes every file of a run that learned to solve its tasks, and returns `workdir`."""
    write_summary(workdir, SUMMARY)
    write_evaluations(workdir, EVALUATIONS)
    write_json(workdir / "config.json", CONFIG)
    with TrajectoryWriter(workdir) as trajectories:
        for sample in (OTHER, FAILED, SOLVED):
            trajectories.write(sample)
    _write_metrics(workdir)
    _write_events(workdir)
    return workdir


def _write_metrics(workdir: Path) -> None:
    clock, chance = Clock(), random.Random(0)
    with MetricsWriter(workdir, clock=clock) as metrics:
        for step in range(1, SFT_STEPS + 1):
            clock.now += 3.5
            values = {"loss": 4 / step**0.5, "token_accuracy": 1 - 0.9 / step**0.5}
            if step % 10 == 0:
                values["probe_success"] = 0.2 * step / SFT_STEPS
            metrics.log(step, values, "sft")
        clock.now += 12
        for step in range(1, RL_STEPS + 1):
            clock.now += 4
            metrics.log(step, _rl_values(step / RL_STEPS, chance), "rl")


def _rl_values(progress: float, chance: random.Random) -> dict:
    success = 0.2 + 0.62 * progress**0.7 + chance.gauss(0, 0.06)
    return {
        "success": success,
        "reward": success - 0.1,
        "loss": 0.3 - 0.2 * progress + chance.gauss(0, 0.03),
        "staleness_mean": 0.8 + chance.gauss(0, 0.1),
        "staleness_max": 3,
        "inflight_groups": 4 + chance.randrange(3),
        "buffer_size": chance.randrange(3),
        "staleness_counts": {0: 12, 1: 15, 2: 4, 3: chance.randrange(2)},
        "tokens_per_second": 900 + chance.gauss(0, 60),
        "train_tokens_per_second": 9000 + chance.gauss(0, 600),
        "mfu": 0.2 + chance.gauss(0, 0.01),
        "entropy": 1.1 - 0.7 * progress + chance.gauss(0, 0.02),
        "ratio_mean": 1 + chance.gauss(0, 0.01),
        "chunks_masked": chance.randrange(4),
        "grad_norm": abs(chance.gauss(0.6, 0.2)),
        "router_load_max": 1.4 + abs(chance.gauss(0, 0.1)),
        "router_unused": 0.0,
        "router_entropy": 0.8 - 0.1 * progress,
        "train_rollout_logp_diff": abs(chance.gauss(0, 2e-6)),
        "old_rollout_logp_diff": abs(chance.gauss(0, 2e-6)),
        "time/generation_s": 21.0,
        "time/environment_s": 8.0,
        "time/verifier_s": 0.5,
        "time/learner_s": 1.5,
        "time/waiting_s": 0.3,
        "time/compile_s": 0.0,
    }


def _write_events(workdir: Path) -> None:
    clock = Clock()
    with EventLog(workdir, clock=clock) as events:
        for seconds, kind, detail, fields in (
            (0, "started", "a new run", {"seed": 7}),
            (150, "checkpoint_saved", "warm start", {"step": 40}),
            (100, "sandbox_lost", "sandbox 3: its runner was killed (signal 9)", {"sandbox": 3}),
            (1, "sandbox_restarted", "sandbox 3", {"sandbox": 3}),
            (140, "actor_lost", "episode worker 1 died while it played rename_files #88", {}),
            (3, "actor_restarted", "episode worker 1", {"worker": 1}),
            (250, "checkpoint_saved", "step 100", {"step": 100}),
        ):
            clock.now += seconds
            events.record(kind, detail, **fields)

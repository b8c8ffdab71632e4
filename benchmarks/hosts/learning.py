"""Does the quickstart's policy learn on two processes as it does on one, and what travels?"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from ale_jax.monitor.evaluations import (
    EVALUATIONS_FILE,
    FINAL,
    FamilyResult,
    read_evaluations,
    wilson_interval,
)
from ale_jax.monitor.events import read_events
from ale_jax.monitor.report import REPORT_FILE
from benchmarks.survival import evidence
from benchmarks.survival.runs import Bench, NoMeasurement
from benchmarks.survival.trials import DONE

CONFIG = "configs/quickstart.py"
SEEDS = (0, 1, 2)
PATIENT = (
    *("--config.deadlines.turn_seconds=120", "--config.deadlines.episode_seconds=1800"),
    "--config.deadlines.placement_seconds=120",
)
LIMIT_S = 3600.0


@dataclasses.dataclass(frozen=True)
class Learned:
    """A run on some processes. success: at its end. bytes_ratio: what each other process was sent
    over the rows in it, at most; None if there was none. whole: whether it has all of its records.
    """

    processes: int
    seed: int
    success: FamilyResult
    bytes_ratio: float | None
    whole: bool


def measure(bench: Bench, steps: int, config: str, say: Callable[[str], None]) -> list[Learned]:
    """One run for each seed on one process, and one on two."""
    found = []
    for processes, seed in [*((1, seed) for seed in SEEDS), (2, SEEDS[0])]:
        changes = f"--config.seed={seed}", f"--config.rl.steps={steps}", f"--spawn={processes}"
        run = bench.run(f"learns-{processes}-{seed}", *PATIENT, *changes, config=config)
        run.variables["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"
        run.start()
        if run.finish(LIMIT_S) != DONE:
            raise NoMeasurement(f"{run.folder.name} ended by {run.last_line()!r}")
        found.append(_learned(run.folder, processes, seed, steps))
        run.end()
        say(f"{found[-1]}")
    return found


def _learned(folder: Path, processes: int, seed: int, steps: int) -> Learned:
    final = [e for e in read_evaluations(folder / EVALUATIONS_FILE) if e.name == FINAL]
    sent = [e.fields for e in read_events(folder / "events.jsonl").records if e.kind == "traffic"]
    ratios = [each["sent"] / each["rows"] for each in sent]
    whole = evidence.newest_step(folder) == steps and (folder / REPORT_FILE).exists()
    success = final[0].total(held_out=False)
    return Learned(processes, seed, success, max(ratios, default=None), whole)


def is_within(found: list[Learned]) -> bool:
    """Whether the success on two processes is within the intervals of those on one: from the lowest
    to the highest end."""
    alone = [each.success for each in found if each.processes == 1]
    ends = [wilson_interval(each.successes, each.tasks) for each in alone]
    (together,) = (each.success for each in found if each.processes > 1)
    rate = together.successes / together.tasks
    return min(low for low, _ in ends) <= rate <= max(high for _, high in ends)

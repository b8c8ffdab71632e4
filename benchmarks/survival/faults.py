"""Fourteen faults, each in a run of its own: is it healed, or said in one line, or does it hang?"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.survival import evidence
from benchmarks.survival.evidence import Goods
from benchmarks.survival.plan import (
    DEADLINES,
    ENDLESS,
    LEARNS,
    REACTION_S,
    RUNTIME_AWAY_S,
    STOP_S,
    Plan,
)
from benchmarks.survival.processes import kill
from benchmarks.survival.runs import WORKER_MODULE, Bench, Run, continue_from
from benchmarks.survival.trials import HEALED, Trial, judge

POISON = "benchmarks.survival.poison"
# With alpha 1, the first two may be made of groups that were finished when the fault came.
HEALED_STEPS = 3
STEPS_BEFORE = 2
TMPFS_MB = 8
AWAY = "away"
WITH_SANDBOXES = (
    *LEARNS,
    "--config.worlds.train=({'world':'shell','families':('trail',)},)",
    "--config.worlds.held_out=()",
    "--config.eval.held_out_tasks=0",
    "--config.eval.tasks=1",
    "--config.rollout.runtime=bubblewrap",
    "--config.sandbox.command_seconds=4.0",  # less than a turn's deadline
)
EVERY_STEP = (ENDLESS, "--config.checkpoint.every=1")

Prepare = Callable[[Run], contextlib.AbstractContextManager[tuple[int, ...]]]


@contextlib.contextmanager
def _nothing(run: Run) -> Iterator[tuple[int, ...]]:
    """What a fault does to the folder before the start; yields the steps that it damages."""
    yield ()


@dataclasses.dataclass(frozen=True)
class Fault:
    """deadline_s: after which the run must have noticed. strike: called while it trains; None if
    the fault is there from the start, or comes from within. settled_s: after which the fault has
    all its effects. within: of the launcher. marked: the run's mark says when it happened.
    variables: of the run's environment. may_drop: groups that cannot be judged, which for any other
    fault are lost for a reason that was not theirs."""

    deadline_s: float = 0.0
    strike: Callable[[Run], None] | None = None
    settled_s: float = 5.0
    prepare: Prepare = _nothing
    within: str = ""
    marked: bool = False
    sandboxes: bool = False
    variables: tuple[tuple[str, str], ...] = ()
    may_drop: bool = False

    @property
    def at_start(self) -> bool:
        return self.strike is None and not self.marked


def _signal_worker(number: int) -> Callable[[Run], None]:
    return lambda run: kill(run.family.workers(), number)


def _kill_program(name: str) -> Callable[[Run], None]:
    return lambda run: kill(run.family.named(name))


def _kill_sandbox(run: Run) -> None:
    kill(run.family.sandboxes()[0])


@contextlib.contextmanager
def _runtime_that_can_go(run: Run) -> Iterator[tuple[int, ...]]:
    """Puts the program with which the start of a sandbox begins first on the run's PATH, in a form
    that fails while a file says so. bwrap itself is found only later, in another view of the disk.
    """
    programs = run.mark.with_suffix(".programs")
    programs.mkdir()
    starter = programs / ("setpriv" if os.getuid() == 0 else "unshare")
    starter.write_text(
        f'#!/bin/sh\n[ -e {programs}/{AWAY} ] && {{ echo "it is away" >&2; exit 1; }}\n'
        f'exec {shutil.which(starter.name)} "$@"\n'
    )
    starter.chmod(0o755)
    run.variables["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
    yield ()


def _runtime_away(run: Run) -> None:
    away = run.mark.with_suffix(".programs") / AWAY
    away.touch()
    for sandbox in run.family.sandboxes():
        kill(sandbox)
    back = threading.Timer(RUNTIME_AWAY_S, lambda: away.unlink(missing_ok=True))
    back.daemon = True
    back.start()


@contextlib.contextmanager
def _small_disk(run: Run) -> Iterator[tuple[int, ...]]:
    saved = run.folder.with_suffix(".saved")
    run.folder.rename(saved)
    run.folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_MB}m", "tmpfs", str(run.folder)]
    subprocess.run(mount, check=True)
    try:
        shutil.copytree(saved, run.folder, dirs_exist_ok=True)
        yield ()
    finally:
        run.end()
        subprocess.run(["umount", "--lazy", str(run.folder)], check=True)


def _fill_disk(run: Run) -> None:
    with (run.folder / "filler").open("wb", buffering=0) as filler:
        with contextlib.suppress(OSError):
            while True:
                filler.write(bytes(4096))


def _damage(count: int) -> Prepare:
    """Damages the newest checkpoints; all if there are no more than `count`."""

    @contextlib.contextmanager
    def prepare(run: Run) -> Iterator[tuple[int, ...]]:
        newest = dict(list(evidence.checkpoints(run.folder).items())[-count:])
        for folder in newest.values():
            evidence.damage(folder)
        yield tuple(newest)

    return prepare


REPLACED_S = DEADLINES.get("turn_seconds", 0.0) + DEADLINES.get("placement_seconds", 0.0)
STARTED_S = 30.0  # a run must have come to its checkpoints
OUTAGE_S = DEADLINES.get("outage_seconds", 0.0)
FAULTS: dict[str, Fault] = {
    "worker_stopped": Fault(REPLACED_S, _signal_worker(signal.SIGSTOP)),
    "worker_killed": Fault(0.0, _signal_worker(signal.SIGKILL)),
    "raylet_killed": Fault(OUTAGE_S, _kill_program("raylet"), 20.0),
    # Ray's own processes wait for their head for a minute.
    "ray_head_killed": Fault(OUTAGE_S, _kill_program("gcs_server"), 75.0),
    "engine_fails": Fault(within="engine_fails", marked=True),
    "sandbox_killed": Fault(REPLACED_S, _kill_sandbox, sandboxes=True),
    "runtime_away": Fault(
        *(RUNTIME_AWAY_S, _runtime_away, RUNTIME_AWAY_S),
        prepare=_runtime_that_can_go,
        sandboxes=True,
    ),
    "poison_task": Fault(marked=True, variables=((WORKER_MODULE, POISON),), may_drop=True),
    "nan_in_gradient": Fault(within="nan_in_gradient", marked=True),
    "nan_in_weights": Fault(within="nan_in_weights", marked=True),
    "disk_full": Fault(0.0, _fill_disk, prepare=_small_disk),
    "newest_checkpoint_damaged": Fault(STARTED_S, prepare=_damage(1)),
    "all_checkpoints_damaged": Fault(STARTED_S, prepare=_damage(evidence.KEEP)),
    "read_error": Fault(within="read_error", marked=True),
}


def measure(bench: Bench, base: Path, plan: Plan, say: Callable[[str], None]) -> list[Trial]:
    """base: an unfinished run without sandboxes. Each trial ends its run."""
    trials = []
    for name in plan.faults or FAULTS:
        trials.append(try_fault(bench, base, name))
        say(f"{name}: {trials[-1].outcome} after {trials[-1].seconds} s: {trials[-1].last_line}")
    return trials


def try_fault(bench: Bench, base: Path, name: str) -> Trial:
    fault = FAULTS[name]
    if fault.sandboxes:
        run = bench.run(name, *WITH_SANDBOXES, *EVERY_STEP, fault=fault.within)
    else:
        run = continue_from(base, bench.plain(name, *EVERY_STEP, fault=fault.within))
    run.variables.update(fault.variables)
    try:
        with fault.prepare(run) as damaged:
            goods, began = _until_struck(run, fault, damaged)
            return _outcome(name, run, goods, began)
    finally:
        run.end()


def _until_struck(run: Run, fault: Fault, damaged: tuple[int, ...]) -> tuple[Goods, float]:
    """What is good, and when the fault happened."""
    goods = Goods.of(run.folder, damaged, stopped=True)
    run.start()
    if fault.at_start:
        return goods, time.monotonic()
    if fault.marked:
        run.require(run.mark.exists, "the fault did not happen")
        return goods, time.monotonic()
    run.require(run.trains, "it does not train")
    run.require_steps(STEPS_BEFORE)
    goods, began = Goods.of(run.folder), time.monotonic()
    fault.strike(run)
    return goods, began


def _outcome(name: str, run: Run, goods: Goods, began: float) -> Trial:
    limit_s = FAULTS[name].deadline_s + REACTION_S
    goes_on = _goes_on(run, limit_s)
    seconds, last_line = time.monotonic() - began, run.last_line()
    if goes_on:
        run.finish(began + FAULTS[name].settled_s - time.monotonic())
        goes_on = _goes_on(run, limit_s)
    if not goes_on:
        seconds, last_line = time.monotonic() - began, run.last_line()
    code = run.code
    outcome, notes = judge(goes_on, code, run.printed())
    notes += goods.lost()
    if not FAULTS[name].may_drop and (dropped := evidence.dropped_episodes(run.folder)):
        notes.append(f"{dropped} episodes were dropped")
    if outcome == HEALED and code is None and run.stop(STOP_S) is None:
        notes.append(f"SIGTERM did not end it within {STOP_S:g} s")
    return Trial.of(name, outcome, round(seconds, 1), code, last_line, notes)


def _goes_on(run: Run, limit_s: float) -> bool:
    wanted = run.step() + HEALED_STEPS
    return run.until(lambda: run.step() >= wanted, limit_s)

"""SIGTERM at random moments, in garbage collections and in compilations: does the run end in time,
with 130, and with its newest step saved?"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.survival import evidence
from benchmarks.survival.plan import ENDLESS, STOP_S, Plan
from benchmarks.survival.runs import Bench, Run, continue_from

STOPPED = 130
WINDOW_S = 8.0
HANG_S = 30.0
COMPILES_S = 2.0
# Only the end of a run, and SIGTERM, save a state.
NEVER_SAVED = (ENDLESS, "--config.checkpoint.every=100000")
NO_CACHE = {"JAX_ENABLE_COMPILATION_CACHE": "false"}


@dataclasses.dataclass(frozen=True)
class Stop:
    """A SIGTERM. made, saved: the newest step in the metrics, and of a checkpoint."""

    when: str
    seconds: float
    code: int | None
    made: int
    saved: int

    @property
    def hung(self) -> bool:
        return self.code is None

    @property
    def right(self) -> bool:
        return self.code == STOPPED and self.seconds <= STOP_S and self.saved >= self.made


def measure(bench: Bench, base: Path, plan: Plan, say: Callable[[str], None]) -> list[Stop]:
    """The same run is stopped and started again, time after time."""
    chance, stops = random.Random(plan.seed), []
    run = continue_from(base, bench.plain("sigterm", *NEVER_SAVED))
    collecting = bench.plain("sigterm", *NEVER_SAVED, fault="signal_in_collection")
    collecting.line.append("--resume")
    compiling = bench.plain("sigterm", *NEVER_SAVED)
    compiling.line.append("--resume")
    compiling.variables.update(NO_CACHE)
    kinds = [(run, _at_random)] * plan.sigterms
    kinds += [(collecting, _in_collection)] * plan.sigterms_in_collections
    kinds += [(compiling, _in_compilation)] * plan.sigterms_in_compilations
    for each, send in kinds:
        stops.append(_stop(each, send, chance))
        say(f"SIGTERM: {stops[-1]}")
    return stops


def _stop(run: Run, send: Callable[[Run, random.Random], str], chance: random.Random) -> Stop:
    run.start()
    try:
        when = send(run, chance)
        began = time.monotonic()
        code = run.stop(HANG_S) if send is not _in_collection else run.finish(HANG_S)
        seconds = round(time.monotonic() - began, 2)
    finally:
        run.end()
    made, saved = run.step(), evidence.newest_checkpoint(run.folder)
    return Stop(when, seconds, code, made, saved)


def _at_random(run: Run, chance: random.Random) -> str:
    # Before it has said anything, it is Python that starts, and not a run.
    run.require(lambda: bool(run.printed()), "it says nothing")
    run.wait_for_random_moment(chance, WINDOW_S)
    return "at a random moment"


def _in_collection(run: Run, chance: random.Random) -> str:
    """The launcher sends the signal."""
    run.mark.unlink(missing_ok=True)
    run.require(run.mark.exists, "no garbage was collected")
    return "in a garbage collection"


def _in_compilation(run: Run, chance: random.Random) -> str:
    run.require(lambda: "compiling the training step" in run.printed(), "nothing was compiled")
    run.until(lambda: False, chance.uniform(0.0, COMPILES_S))
    return "in a compilation"

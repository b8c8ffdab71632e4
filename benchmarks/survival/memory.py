"""How much device memory a restore takes, in states."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.survival.plan import ENDLESS
from benchmarks.survival.runs import START_S, Bench, NoMeasurement, continue_from


def measure(bench: Bench, base: Path) -> float:
    """The peak of live bytes while a checkpoint is restored, over the bytes of the state."""
    run = continue_from(base, bench.plain("memory", ENDLESS, fault="memory"))
    run.start()
    run.finish(START_S)
    if not run.mark.exists():
        raise NoMeasurement(f"nothing was restored: {run.last_line()}")
    found = json.loads(run.mark.read_text())
    return round(found["peak"] / found["state"], 3)

"""A run cannot hang, cannot lose its checkpoints, and cannot poison itself: is that so?

    python -m benchmarks.survival [--quick] [--only=faults,sigterm,sync,async,memory,chaos]
        [--out=FILE]

faults: fourteen faults, each of which a run must survive, or end with 2 and one line.
sigterm: SIGTERM at random moments; the run must end in time and save its newest step.
sync: kill -9 at random moments of a synchronous run, whose results must not change.
async: kill -9 at random moments of an asynchronous run, which must lose and repeat nothing.
memory: the device memory that a restore takes.
chaos: whole runs in which something is killed all the time, against calm ones.

Faults are signals, files and mounts, or functions of the product that are replaced in a process of
the benchmark (launcher.py, poison.py). It needs Linux, bubblewrap, and for the full disk the right
to mount. Progress is written to stderr, tables to stdout, and the last line is one JSON object. All
that it starts, it ends, also when it is interrupted.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ale_jax.monitor.evaluations import SUMMARY_FILE
from benchmarks.choices import some_of
from benchmarks.survival import asynchronous, chaos, faults, memory, report, sigterm, summary, sync
from benchmarks.survival.plan import FULL, QUICK, Plan
from benchmarks.survival.runs import Bench, NoMeasurement
from benchmarks.survival.summary import Figures
from benchmarks.survival.trials import DONE

BASE_STEPS = 3


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


class Measurement:
    """found: of each part, by its name. failures: of parts that could not be measured."""

    def __init__(self, bench: Bench, plan: Plan):
        self.found: dict[str, Any] = {}
        self.failures: dict[str, str] = {}
        self._bench, self._plan = bench, plan
        self._made_base: Path | None = None

    def run(self, parts: list[str]) -> None:
        for part in (each for each in PARTS if each in parts):
            try:
                self.found[part] = PARTS[part][0](self)
            except Exception as error:  # of any kind, as the other parts must still be measured
                say(f"{part} failed:\n{traceback.format_exc()}")
                self.failures[part] = f"{type(error).__name__}: {error}"
                self._bench.end_runs()  # they would slow down the next part

    def figures(self) -> Figures:
        return summary.together([PARTS[part][1](each) for part, each in self.found.items()])

    def _base(self) -> Path:
        """An unfinished run of some steps, with two checkpoints."""
        if self._made_base is None:
            steps = (f"--config.rl.steps={BASE_STEPS}", "--config.checkpoint.every=1")
            run = self._bench.plain("base", *steps)
            run.start()
            if run.finish() != DONE:
                raise NoMeasurement(f"a run without any fault ended by {run.last_line()!r}")
            (run.folder / SUMMARY_FILE).unlink()
            self._made_base = run.folder
        return self._made_base

    def faults(self) -> list[faults.Trial]:
        return faults.measure(self._bench, self._base(), self._plan, say)

    def sigterm(self) -> list[sigterm.Stop]:
        return sigterm.measure(self._bench, self._base(), self._plan, say)

    def sync(self) -> list[sync.Comparison]:
        return sync.measure(self._bench, self._plan, say)

    def asynchronous(self) -> asynchronous.Account:
        return asynchronous.measure(self._bench, self._plan, say)

    def memory(self) -> float:
        return memory.measure(self._bench, self._base())

    def chaos(self) -> tuple[list[chaos.Ended], chaos.Ended]:
        return chaos.measure(self._bench, self._plan, say)


# How a part is measured, and how its figures are computed from what it has found.
PARTS: dict[str, tuple[Callable[[Measurement], Any], Callable[[Any], Figures]]] = {
    "faults": (Measurement.faults, summary.of_faults),
    "sigterm": (Measurement.sigterm, summary.of_stops),
    "sync": (Measurement.sync, summary.of_comparisons),
    "async": (Measurement.asynchronous, summary.of_account),
    "memory": (Measurement.memory, summary.of_memory),
    "chaos": (Measurement.chaos, summary.of_chaos),
}


def main(arguments: list[str]) -> int:
    """Returns the exit code: 1 if a part could not be measured."""
    options = _parse(arguments)
    with Bench.open() as bench:
        measurement = Measurement(bench, QUICK if options.quick else FULL)
        measurement.run(options.only)
    found, figures = measurement.found, measurement.figures()
    trials, stops = found.get("faults", []), found.get("sigterm", [])
    report.show(trials, stops, figures)
    about = {"command": " ".join(["python -m benchmarks.survival", *arguments])}
    about |= {"cores": os.cpu_count(), "failures": measurement.failures}
    about |= {"faults": list(map(dataclasses.asdict, trials))}
    about |= {"sigterms": list(map(dataclasses.asdict, stops))}
    result = {"benchmark": "survival", **figures, **about}
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 1 if measurement.failures else 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("benchmarks.survival", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few repetitions, some minutes")
    parser.add_argument("--only", type=some_of(PARTS), default=[*PARTS])
    parser.add_argument("--out", type=Path)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Do several processes train as one, and does the death of one lose nothing?

    python -m benchmarks.hosts [--quick] [--only=equal,deaths,sigterm,lease,learns] [--out=FILE]
        [--algorithms=ipa,...] [--processes=2,4]

equal: synchronous runs of every algorithm on several processes, against one process.
deaths: each of four processes is killed or stopped; then the same command; then with fewer.
sigterm: each of four processes is told to stop; all must save the same step.
lease: a second run of the folder as from another machine; and a run that was stopped for long.
learns: the quickstart's policy in sandboxes, on one process with three seeds, and on two.

All processes run here, with virtual devices of the CPU. Progress is written to stderr, a table to
stdout, and the last line is one JSON object.
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

from rich.console import Console
from rich.table import Table

from ale_jax.configs.algorithms import PRESETS
from benchmarks.choices import some_of
from benchmarks.hosts import deaths, equality, learning, lease
from benchmarks.hosts.runs import start
from benchmarks.survival.plan import SMOKE
from benchmarks.survival.runs import Bench, NoMeasurement
from benchmarks.survival.trials import DONE

STOPPED = 130
ENDS_S = 30.0  # within which the others must have ended
REFUSED_S = 5.0
STEPS, QUICK_STEPS, LEARNING_STEPS = 10, 3, 40


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def measure_equality(bench: Bench, options: argparse.Namespace) -> tuple[dict[str, Any], Any]:
    steps = QUICK_STEPS if options.quick else STEPS
    found = equality.measure(bench, options.algorithms, options.processes, steps, say)
    figures = {
        "processes_tried": options.processes,
        "compared": len(found),
        "equal_to_one": sum(not each.differing for each in found),
        "without_gradients": [each.algorithm for each in found if not each.learned],
    }
    return figures, found


def measure_deaths(bench: Bench, options: argparse.Namespace) -> tuple[dict[str, Any], Any]:
    name = "unbroken"
    unbroken = start(bench, name, deaths.PROCESSES, deaths.DEVICES, deaths.OPTIONS)
    if unbroken.finish(deaths.FINISHES_S) != DONE:
        raise NoMeasurement(f"a run without any fault ended by {unbroken.last_line()!r}")
    found = deaths.measure_deaths(bench, _victims(options), unbroken.folder, say)
    every = [death for each in found for death in each.deaths]
    seconds = [each.seconds for each in every]
    figures = {
        "deaths": len(every),
        "death_exits": sum(s is not None and s <= ENDS_S for s in seconds),
        "slowest_death_exit_s": max((s for s in seconds if s is not None), default=None),
        "death_codes": sorted({each.code for each in every if each.code is not None}),
        "processes_left": sum(each.left for each in every),
        "runs_resumed": len(found),
        "resumed_on_fewer": sum(not each.differing for each in found),
    }
    return figures, found


def measure_terminations(bench: Bench, options: argparse.Namespace) -> tuple[dict[str, Any], Any]:
    found = deaths.measure_terminations(bench, _victims(options), say)
    right = [each for each in found if each.code == STOPPED and each.saved == each.made]
    figures = {
        "terminations": len(found),
        "sigterm_same_step": len(right),
        "slowest_termination_s": max(each.seconds for each in found),
    }
    return figures, found


def measure_lease(bench: Bench, options: argparse.Namespace) -> tuple[dict[str, Any], Any]:
    found = lease.measure(bench, say)
    return {"fenced": found.right, "refused_s": found.refused_seconds}, [found]


def measure_learning(bench: Bench, options: argparse.Namespace) -> tuple[dict[str, Any], Any]:
    steps, config = (QUICK_STEPS, SMOKE) if options.quick else (LEARNING_STEPS, learning.CONFIG)
    found = learning.measure(bench, steps, config, say)
    figures = {
        "learned_two_hosts": learning.is_within(found) and all(each.whole for each in found),
        "success": [f"{each.success.successes} of {each.success.tasks}" for each in found],
        "follower_bytes_ratio": max(each.bytes_ratio for each in found if each.bytes_ratio),
    }
    return figures, found


Part = Callable[[Bench, argparse.Namespace], tuple[dict[str, Any], Any]]
PARTS: dict[str, Part] = {
    "equal": measure_equality,
    "deaths": measure_deaths,
    "sigterm": measure_terminations,
    "lease": measure_lease,
    "learns": measure_learning,
}


def _victims(options: argparse.Namespace) -> list[int]:
    return [1] if options.quick else list(range(deaths.PROCESSES))


def main(arguments: list[str]) -> int:
    """Returns the exit code: 1 if a part could not be measured."""
    options = _parse(arguments)
    figures: dict[str, Any] = {}
    details: dict[str, Any] = {}
    failures: dict[str, str] = {}
    with Bench.open() as bench:
        for part in (each for each in PARTS if each in options.only):
            try:
                found, rows = PARTS[part](bench, options)
            except Exception as error:  # of any kind, as the other parts must still be measured
                say(f"{part} failed:\n{traceback.format_exc()}")
                failures[part] = f"{type(error).__name__}: {error}"
                bench.end_runs()  # they would slow down the next part
                continue
            figures |= found
            details[part] = list(map(dataclasses.asdict, rows))
    table = Table("figure", "value", title="Several processes")
    for name, value in figures.items():
        table.add_row(name, str(value))
    Console().print(table)
    about = {"command": " ".join(["python -m benchmarks.hosts", *arguments])}
    about |= {"cores": os.cpu_count(), "failures": failures, "details": details}
    result = {"benchmark": "hosts", **figures, **about}
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 1 if failures else 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("benchmarks.hosts", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one of each, some minutes")
    parser.add_argument("--only", type=some_of(PARTS), default=[*PARTS])
    parser.add_argument("--algorithms", type=some_of(PRESETS), default=None)
    parser.add_argument("--processes", type=lambda text: [*map(int, text.split(","))], default=None)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    options.algorithms = options.algorithms or (["ipa"] if options.quick else [*PRESETS])
    options.processes = options.processes or ([2] if options.quick else [2, 4])
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

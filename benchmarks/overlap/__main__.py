"""How much more is learned in the same time if sampling and learning share the devices at once,
instead of taking turns?

    python -m benchmarks.overlap [--quick] [--seeds=0,1,2] [--out=FILE]

The quickstart's policy in sandboxes, whose steps wait 0.1 s on average (waiting.py). In turns:
rl.alpha 0, so that no episode is played while weights change. At once: rl.alpha 1. Per seed, one
run after the other on the same machine. Progress is written to stderr, a table to stdout, and the
last line is one JSON object. --quick: the smoke config, whose figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.survival import evidence
from benchmarks.survival.plan import SMOKE
from benchmarks.survival.runs import WORKER_MODULE, Bench, NoMeasurement
from benchmarks.survival.trials import DONE

ARMS = {"in_turns": 0.0, "at_once": 1.0}
STEPS, FIRST_STEP = 40, 5  # from which on time is taken, when all is compiled and the queue is full
WARM_STEPS = 120
QUICK_STEPS, QUICK_FIRST_STEP, QUICK_WARM_STEPS = 4, 1, 2
LIMIT_S = 1800.0
BAR = 1.3
OPTIONS = (
    "--config.sandbox.command_seconds=4.0",  # less than the benchmarks give a turn
    "--config.eval.tasks=8",
    "--config.eval.held_out_tasks=2",
)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    with Bench.open() as bench:
        rates = [measure(bench, seed, options.quick) for seed in seeds]
    result = summary(seeds, rates)
    show(result)
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))
    return 0 if options.quick or result["median_ratio"] >= BAR else 1


def measure(bench: Bench, seed: int, quick: bool) -> dict[str, float]:
    """Steps per second of each arm."""
    config, steps, first, warm = "configs/quickstart.py", STEPS, FIRST_STEP, WARM_STEPS
    if quick:
        config, steps, first, warm = SMOKE, QUICK_STEPS, QUICK_FIRST_STEP, QUICK_WARM_STEPS
    rates = {}
    for arm, alpha in ARMS.items():
        changes = (
            f"--config.seed={seed}",
            f"--config.rl.alpha={alpha}",
            f"--config.rl.steps={steps}",
            f"--config.warm_start.max_steps={warm}",
        )
        run = bench.run(f"{arm}-{seed}", *OPTIONS, *changes, config=config)
        run.variables |= {WORKER_MODULE: "benchmarks.overlap.waiting", "XLA_FLAGS": ""}
        run.start()
        if run.finish(LIMIT_S) != DONE:
            raise NoMeasurement(f"{arm}, seed {seed}, ended by {run.last_line()!r}")
        rates[arm] = steps_per_second(run.folder, first)
        run.end()
        print(f"{time.strftime('%H:%M:%S')} {arm} {seed}: {rates[arm]:.3f}", file=sys.stderr)
    return rates


def steps_per_second(folder: Path, first: int) -> float:
    """From the end of step `first` to the end of the last one."""
    ends = {line["step"]: line["seconds"] for line in evidence.metrics(folder)}
    last = max(ends)
    return (last - first) / (ends[last] - ends[first])


def summary(seeds: list[int], rates: list[dict[str, float]]) -> dict[str, Any]:
    ratios = [each["at_once"] / each["in_turns"] for each in rates]
    return {
        "seeds": seeds,
        "steps_per_second": {arm: [round(each[arm], 4) for each in rates] for arm in ARMS},
        "ratios": [round(ratio, 3) for ratio in ratios],
        "median_ratio": round(statistics.median(ratios), 3),
    }


def show(result: dict[str, Any]) -> None:
    table = Table("seed", *ARMS, "ratio", title="Steps per second")
    columns = result["seeds"], *result["steps_per_second"].values(), result["ratios"]
    for row in zip(*columns, strict=True):
        table.add_row(*map(str, row))
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

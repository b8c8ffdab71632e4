"""The results of the quickstart for several seeds, with IPA and with GRPO, in one table.

    python -m benchmarks.quickstart --seeds=0,1,2 --algorithms=ipa,grpo [--quick]

Runs `ale_jax.launch` once for each algorithm and seed, in folders below --runs, and reads their
summary.json. Finished runs are not repeated. --quick runs the smoke config, which learns nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

from ale_jax.monitor.evaluations import Summary, read_summary
from benchmarks.launching import launch

COLUMNS = (
    "success_warm_start",
    "success_final",
    "success_held_out_families",
    "reward_final",
    "seconds_total",
    "episodes",
    "trajectories_dropped_stale",
    "max_staleness",
)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--algorithms", default="ipa,grpo")
    parser.add_argument("--runs", type=Path, default=Path("runs/benchmark"))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    summaries = [
        run(algorithm, int(seed), options.runs, options.quick)
        for algorithm in options.algorithms.split(",")
        for seed in options.seeds.split(",")
    ]
    print_table(summaries)
    print(json.dumps(result(arguments, summaries)))
    return 0


def run(algorithm: str, seed: int, runs: Path, quick: bool) -> Summary:
    workdir = runs / f"{'quick_' if quick else ''}{algorithm}_{seed}"
    config = f"configs/{'smoke' if quick else 'quickstart'}.py:{algorithm}"
    launch(config, workdir, {"seed": seed})
    return read_summary(workdir / "summary.json")


def print_table(summaries: list[Summary]) -> None:
    print("algorithm  seed  " + "  ".join(COLUMNS))
    for summary in summaries:
        cells = (f"{_text(getattr(summary, c)):>{len(c)}}" for c in COLUMNS)
        print(f"{summary.algorithm:9}  {summary.seed:4}  " + "  ".join(cells))


def _text(value: float | int | None) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def result(arguments: list[str], summaries: list[Summary]) -> dict[str, object]:
    return {
        "command": " ".join(["python -m benchmarks.quickstart", *arguments]),
        "hardware": f"{os.cpu_count()} CPU cores, {platform.machine()}, no accelerator",
        "versions": {name: version(name) for name in ("jax", "jaxlib", "ray", "numpy")},
        "runs": [dataclasses.asdict(summary) for summary in summaries],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Which algorithm wins where? The trainer's own credit and losses on synthetic worlds.

    python -m benchmarks.laboratory --arms=ipa,grpo,ppo --world=late --age=8 --seeds=256
    python -m benchmarks.laboratory --table [--policy=network] [--arms=turn_topr] [--out=FILE]
    python -m benchmarks.laboratory --check

The first compares arms (presets of configs/algorithms.py) in one world; --age, --uses, --epochs,
--gap, --dropped, --tokens and --place change its training, --blind keeps critics from learning, and
--first_seed asks the same of other seeds. --table measures every preset, or those of --arms, in
every regime with one policy, and adds that to benchmarks/results/laboratory.json. --check measures
a small part of it again, counts the cells that moved, and takes the time. The last line of stdout
is a JSON object.
"""

from __future__ import annotations

import argparse
import os
import sys

from ale_jax.configs.algorithms import PRESETS

# One virtual device for each core. JAX reads this when it is imported.
os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count={os.cpu_count()}")

import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.choices import some_of
from benchmarks.laboratory import golden
from benchmarks.laboratory.comparison import RATES, measure, to_json
from benchmarks.laboratory.credit import arm
from benchmarks.laboratory.regimes import WORLDS, regime_of
from benchmarks.laboratory.training import Protocol
from benchmarks.laboratory.world import Size

CHANGES = {
    **dict.fromkeys(("age", "uses", "epochs", "tokens", "place"), int),
    **dict.fromkeys(("gap", "dropped"), float),
}


def main(arguments: list[str]) -> int:
    """Returns the exit code: 1 if a cell of the table has moved, 2 for what cannot be measured."""
    options = _parse(arguments)
    try:
        result = _result(options)
    except ValueError as error:
        print(f"benchmarks.laboratory: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result))
    return 1 if result.get("cells_moved") else 0


def _result(options: argparse.Namespace) -> dict[str, Any]:
    if options.check:
        return golden.check(_say)
    if options.seeds < 2:
        raise ValueError(f"--seeds={options.seeds} must be at least 2: errors need as many")
    if not options.table:
        return _compare(options)
    part = golden.Part(options.policy, options.arms or tuple(PRESETS), options.seeds)
    golden.add_part(options.out, part, _say)
    return {"written": str(options.out)}


def _compare(options: argparse.Namespace) -> dict[str, Any]:
    size, protocol = Size(), Protocol(options.policy, blind=options.blind)
    changes = {name: getattr(options, name) for name in CHANGES}
    given = {name: value for name, value in changes.items() if value is not None}
    world = regime_of(options.world, size, **given)
    began = time.monotonic()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    arms = options.arms or ("ipa", "ppo", "grpo")
    every = {name: measure(world, arm(name), size, protocol, seeds) for name in arms}
    reference = every[arms[-1]]
    found = {name: to_json(cell, reference) for name, cell in every.items()}
    title = f"{options.world}, {options.policy}, {options.seeds} seeds, points of 100"
    table = Table("arm", "rate", "area", "difference", "final", "difference", title=title)
    for name, row in found.items():
        table.add_row(name, f"{row['rate']:g}", f"{row['area']:.1f}", *_cells(row))
    Console().print(table)
    return {"arms": found, "seconds": round(time.monotonic() - began, 1)}


def _cells(row: dict[str, Any]) -> tuple[str, str, str]:
    """Differences are to the last arm."""
    area, final = (
        f"{row[f'{name}_difference']:+.1f} ± {row[f'{name}_error']:.1f}"
        for name in ("area", "final")
    )
    return area, f"{row['final']:.1f}", final


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("benchmarks.laboratory", description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="an hour for all presets")
    parser.add_argument("--check", action="store_true", help="minutes")
    parser.add_argument(
        "--arms", type=some_of(PRESETS), help="default: ipa,ppo,grpo; all for --table"
    )
    parser.add_argument("--world", choices=WORLDS, default="late")
    parser.add_argument("--policy", choices=RATES, default="table")
    parser.add_argument("--seeds", type=int, default=64)
    parser.add_argument("--first_seed", type=int, default=0)
    parser.add_argument("--blind", action="store_true", help="critics learn nothing")
    parser.add_argument("--out", type=Path, default=golden.FILE)
    for name, kind in CHANGES.items():
        parser.add_argument(f"--{name}", type=kind)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

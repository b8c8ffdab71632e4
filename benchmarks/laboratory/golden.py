"""The table of every preset in every regime, and a check that no loss has moved a cell of it.

The check repeats a small version of the table, which is measured and stored with it: few seeds and
updates, at a fixed rate. On one kind of processor its numbers repeat exactly; rounding elsewhere
may change a sampled token, which moves a cell by much less than `MOVED`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ale_jax.configs.algorithms import PRESETS
from ale_jax.files import read_json, write_json
from benchmarks.laboratory.comparison import measure, to_json
from benchmarks.laboratory.credit import arm
from benchmarks.laboratory.regimes import REGIMES, regime_of
from benchmarks.laboratory.training import Protocol, curves
from benchmarks.laboratory.world import Size

FILE = Path(__file__).parents[1] / "results" / "laboratory.json"
REFERENCE = "grpo"
SIZE = Size()
SMALL_POLICY, SMALL_SEEDS, SMALL_UPDATES, SMALL_RATE = "table", 8, 12, 0.3
MOVED = 0.5  # points of 100


@dataclasses.dataclass(frozen=True)
class Part:
    """Of the table: the columns of some presets, with one policy."""

    policy: str
    presets: Sequence[str]
    seeds: int


def add_part(path: Path, part: Part, say: Callable[[str], None]) -> None:
    """Measures a part, and keeps what else is in the file. Each regime is written when it is done,
    so that a part that was interrupted is continued; a complete one is measured again.

    ValueError if the file was measured with another number of seeds.
    """
    about = {"benchmark": "laboratory", "seeds": part.seeds, "reference": REFERENCE}
    stored = read_json(path) if path.exists() else about | {"small": {}, "tables": {}}
    if stored["seeds"] != part.seeds:
        raise ValueError(f"{path} is of {stored['seeds']} seeds: measure as many, or move it away")
    table = stored["tables"].setdefault(part.policy, {})
    missing = [name for name in REGIMES if not set(part.presets) <= table.get(name, {}).keys()]
    for regime in missing or REGIMES:
        table[regime] = _in_order(table.get(regime, {}) | measure_row(regime, part))
        write_json(path, stored, indent=1)
        say(f"{part.policy}, {regime}")
    if part.policy == SMALL_POLICY:
        for regime, row in small_table(part.presets).items():
            stored["small"][regime] = _in_order(stored["small"].get(regime, {}) | row)
        write_json(path, stored, indent=1)


def measure_row(regime: str, part: Part) -> dict[str, Any]:
    """`comparison.to_json` by preset, with differences to GRPO."""
    world_name, changes = REGIMES[regime]
    world, protocol = regime_of(world_name, SIZE, **changes), Protocol(part.policy)
    cells = {
        preset: measure(world, arm(preset), SIZE, protocol, range(part.seeds))
        for preset in {REFERENCE: None} | dict.fromkeys(part.presets)
    }
    return {preset: to_json(cells[preset], cells[REFERENCE]) for preset in part.presets}


def _in_order(row: dict[str, Any]) -> dict[str, Any]:
    return {preset: row[preset] for preset in PRESETS if preset in row}


def small_table(presets: Sequence[str]) -> dict[str, dict[str, float]]:
    """Final success by regime and preset, in points of 100."""
    protocol = Protocol(SMALL_POLICY, SMALL_UPDATES)
    rates = np.full(SMALL_SEEDS, SMALL_RATE)
    small: dict[str, dict[str, float]] = {}
    for name, (world_name, changes) in REGIMES.items():
        world = regime_of(world_name, SIZE, **changes)
        small[name] = {}
        for preset in presets:
            found = curves(np.arange(SMALL_SEEDS), rates, world, arm(preset), SIZE, protocol)
            small[name][preset] = round(100.0 * float(found[:, -1].mean()), 4)
    return small


def check(say: Callable[[str], None]) -> dict[str, Any]:
    """Cells of the small table that have moved, and episodes a second."""
    stored = read_json(FILE)["small"]
    small = small_table(tuple(PRESETS))
    moved = [
        f"{regime}, {preset}: {stored[regime].get(preset)} is now {value}"
        for regime, row in small.items()
        for preset, value in row.items()
        if abs(stored.get(regime, {}).get(preset, np.inf) - value) > MOVED
    ]
    for line in moved:
        say(line)
    return {
        "benchmark": "laboratory",
        "episodes_per_second": round(episodes_per_second()),
        "presets_run": len(next(iter(small.values()))),
        "presets_total": len(PRESETS),
        "cells_moved": len(moved),
    }


def episodes_per_second(preset: str = "ipa", seeds: int = 64) -> float:
    """Of runs of the table's size, compiled before."""
    protocol, world = Protocol(), regime_of("late", SIZE, age=8)
    rates = np.full(seeds, SMALL_RATE)

    def run(first: int) -> None:
        curves(first + np.arange(seeds), rates, world, arm(preset), SIZE, protocol)

    run(0)
    began = time.monotonic()
    run(seeds)
    return seeds * protocol.updates * protocol.episodes / (time.monotonic() - began)

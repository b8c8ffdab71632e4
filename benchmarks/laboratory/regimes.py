"""The worlds and the ways of training in which algorithms are compared."""

from __future__ import annotations

from typing import Any

from benchmarks.laboratory.world import Regime, Size, regime

# Where decisions lie. The probability of the right word at the start is such that 5 to 15 % of the
# episodes succeed then, as after a warm start.
WORLDS: dict[str, dict[str, Any]] = {
    "late": {"deciding": (21, 22, 23)},
    "early": {"deciding": (0, 1, 2)},
    "spread": {"deciding": (4, 12, 20)},
    "all": {"right": (0.94, 0.86)},
    "lock": {"stages": 6, "right": (0.7, 0.6)},
    "retries": {"stages": 6, "turns": 12, "right": (0.35, 0.25), "retries": True},
}

# The regimes of the table: a world, and how it differs from training on fresh episodes, once.
REGIMES: dict[str, tuple[str, dict[str, Any]]] = {
    "late": ("late", {}),
    "late, 8 versions old": ("late", {"age": 8}),
    "early": ("early", {}),
    "early, 8 versions old": ("early", {"age": 8}),
    "spread, 8 versions old": ("spread", {"age": 8}),
    "all decide": ("all", {}),
    "lock": ("lock", {}),
    "lock, 8 versions old": ("lock", {"age": 8}),
    "lock, batches used 4 times": ("lock", {"uses": 4}),
    "lock, engine off by 0.5": ("lock", {"gap": 0.5}),
    "lock, chunks of one token": ("lock", {"tokens": 1}),
    "retries, 4 versions old": ("retries", {"age": 4}),
}


def regime_of(world: str, size: Size, **changes: float) -> Regime:
    """The world of that name with `changes` to the fields of `Regime`. ValueError if unknown."""
    if world not in WORLDS:
        raise ValueError(f"world {world!r} is unknown: choose one of {', '.join(WORLDS)}")
    return regime(size, **WORLDS[world] | changes)

"""Compares arms in regimes, by differences that are paired by seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.laboratory.credit import Arm
from benchmarks.laboratory.training import Protocol, curves
from benchmarks.laboratory.world import Regime, Size

# Each policy's learning rates: the length of a step, or Adam's.
RATES = {
    "table": (0.1, 0.3, 1.0, 3.0, 10.0),
    "table_adam": (0.03, 0.1, 0.3, 1.0, 3.0),
    "network": (0.01, 0.03, 0.1, 0.3, 1.0),
}
TUNING_SEED = 1 << 20  # the first; those of measurements begin at 0


@dataclasses.dataclass(frozen=True)
class Cell:
    """What an arm reached in a regime, with the rate that was best on other seeds.

    begin: success before the first update. area_S: mean success over the updates of each seed, the
    primary statistic. final_S: success after the last.
    """

    rate: float
    begin: float
    area_S: np.ndarray
    final_S: np.ndarray


def measure(world: Regime, arm: Arm, size: Size, protocol: Protocol, seeds: Sequence[int]) -> Cell:
    """With the best rate of an eighth as many other seeds."""
    tuning_seeds = max(1, len(seeds) // 8)
    rates = RATES[protocol.policy]
    tuning = np.tile(TUNING_SEED + np.arange(tuning_seeds), len(rates))
    each = np.repeat(rates, tuning_seeds)
    tuned_RU = curves(tuning, each, world, arm, size, protocol)
    rate = rates[int(tuned_RU.reshape(len(rates), -1).mean(1).argmax())]
    success_SU = curves(np.array(seeds), np.full(len(seeds), rate), world, arm, size, protocol)
    area_S = success_SU[:, 1:].mean(1)
    return Cell(rate, float(success_SU[:, 0].mean()), area_S, success_SU[:, -1])


def paired(one_S: np.ndarray, other_S: np.ndarray) -> tuple[float, float]:
    """Mean and standard error of the difference, in points of 100."""
    difference_S = 100.0 * (np.float64(one_S) - other_S)
    return float(difference_S.mean()), float(difference_S.std(ddof=1) / len(difference_S) ** 0.5)


def to_json(cell: Cell, reference: Cell) -> dict[str, Any]:
    """In points of 100, with two digits; differences are to the `reference` arm."""
    figures: dict[str, Any] = {"rate": cell.rate, "begin": round(100 * cell.begin, 2)}
    for name, own_S, its_S in (
        ("area", cell.area_S, reference.area_S),
        ("final", cell.final_S, reference.final_S),
    ):
        difference, error = paired(own_S, its_S)
        figures[name] = round(100.0 * float(own_S.mean()), 2)
        figures[f"{name}_difference"] = round(difference, 2)
        figures[f"{name}_error"] = round(error, 2)
    return figures

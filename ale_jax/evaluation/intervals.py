"""Estimates over items, with 95 % intervals.

An item is drawn, and then played several times. Samples of one item resemble each other, so that
the item is the unit: each weighs the same, however many samples it has, and the spread is that
between items (Miller 2024, arXiv 2411.00640). Rates and their differences get a few imagined items
beside those that were seen. A bootstrap over items, or Student's interval, has no width at rates of
0 and 1, and misses what only a few items in a hundred do.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

from ale_jax.monitor.evaluations import wilson_interval

LEVEL = 0.05


@dataclasses.dataclass(frozen=True)
class Estimate:
    """low, high: the 95 % interval; None if these items do not tell it. items: how many count."""

    value: float
    low: float | None
    high: float | None
    items: int


def rate(rates: Sequence[float]) -> Estimate:
    """Returns the mean of the items' rates, each in [0, 1].

    The interval is Wilson's for as many independent attempts as have the variance that is seen
    between items (Korn and Graubard 1998), to which two items of rate 0 and two of rate 1 are
    added. Of one sample per item they are the samples, and fewer attempts than items there never
    are.

    >>> rate([0.0] * 10)
    Estimate(value=0.0, low=0.0, high=0.27753279986288926, items=10)
    """
    seen_U = np.asarray(rates, float)
    with_four_U = np.append(seen_U, (0.0, 0.0, 1.0, 1.0))
    centre, variance = float(with_four_U.mean()), float(with_four_U.var())
    attempts = len(with_four_U) * centre * (1 - centre) / variance - 4
    value = float(seen_U.mean())
    return Estimate(value, *wilson_interval(value * attempts, attempts), len(seen_U))


def mean(values: Sequence[float]) -> Estimate:
    """Returns the mean of one value per item, with Student's interval.

    It has none if all values are equal, as they do not tell how far others would be.
    """
    value_U = np.asarray(values, float)
    items, value = len(value_U), float(value_U.mean())
    if items < 2 or np.ptp(value_U) == 0:
        return Estimate(value, None, None, items)
    half = _student(items - 1) * float(value_U.std(ddof=1)) / math.sqrt(items)
    return Estimate(value, value - half, value + half, items)


def difference(differences: Sequence[float]) -> Estimate:
    """Returns the mean of the items' differences of rates, each in [-1, 1].

    The interval is Student's after adding an item that only the one policy solves, and one that
    only the other does, as Bonett and Price (2012) do for one sample per item.
    """
    centre, variance = with_two_more(differences)
    items = len(differences) + 2
    half = _student(items - 1) * math.sqrt(variance / items)
    value = float(np.mean(differences))
    return Estimate(value, max(-1.0, centre - half), min(1.0, centre + half), len(differences))


def with_two_more(differences: Sequence[float]) -> tuple[float, float]:
    """Returns mean and variance of the differences and of two more, 1 and -1.

    >>> with_two_more([0.0, 0.0])
    (0.0, 0.5)
    """
    all_U = np.append(np.asarray(differences, float), (1.0, -1.0))
    return float(all_U.mean()), float(all_U.var())


def _student(freedom: int) -> float:
    """Returns the two-sided quantile of Student's t."""
    return float(stdtrit(freedom, 1 - LEVEL / 2))

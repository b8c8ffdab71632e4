"""How much it takes to show a difference."""

from __future__ import annotations

import dataclasses
import math
from statistics import NormalDist

from scipy.special import stdtrit

LEVEL, POWER = 0.05, 0.8
GAP = 0.03  # 3 points


@dataclasses.dataclass(frozen=True)
class Power:
    """gap: a difference of rates. needed: units (items, or seeds) with which it is shown with a
    probability of 80 %. more: of them than there are. shows: the difference that those that there
    are show with this probability."""

    gap: float
    needed: int
    more: int
    shows: float


def power(variance: float, units: int, comparisons: int = 1, least: int = 2) -> Power:
    """Returns what a comparison with a test at 5 % takes, if units differ with this variance.

    comparisons: among which it is corrected. least: units below which there is no test.
    """
    tail = 1 - LEVEL / comparisons / 2
    normal = NormalDist()
    quantiles = normal.inv_cdf(tail) + normal.inv_cdf(POWER)
    needed = max(least, math.ceil(quantiles**2 * variance / GAP**2))
    # With few units, their own spread is badly known, as Student's t knows.
    while (_student(tail, needed) ** 2 * variance / GAP**2) > needed:
        needed += 1
    shows = _student(tail, max(units, 2)) * math.sqrt(variance / units)
    return Power(GAP, needed, max(0, needed - units), shows)


def _student(tail: float, units: int) -> float:
    return float(stdtrit(units - 1, tail) + stdtrit(units - 1, POWER))

"""The rule by which comparisons of training runs end: the seed is the unit."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from scipy.special import stdtr

# After so many seeds a comparison may end, if the p-value is at most this. O'Brien and Fleming's
# levels for three looks (1979), of which 5 % are spent in all: looking early costs little.
LOOKS: Mapping[int, float] = {3: 0.0005, 6: 0.0141, 9: 0.0451}


@dataclasses.dataclass(frozen=True)
class PairedSeeds:
    """mean, error: of the differences by seed, and the standard error of their mean. p_value: of a
    two-sided t test; None without any spread."""

    mean: float
    error: float
    p_value: float | None


def paired(differences: Sequence[float]) -> PairedSeeds:
    """Returns what at least two differences by seed say."""
    mean = statistics.fmean(differences)
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    # Without any spread there is no t; a run less itself has none.
    p_value = 2 * float(stdtr(len(differences) - 1, -abs(mean / error))) if error else None
    return PairedSeeds(mean, error, p_value)


def decided(p_value: float | None, seeds: int) -> bool | None:
    """Returns whether the p-value is at most the level of this look; None after a number of seeds
    at which there is no look, and where there is no p-value."""
    level = LOOKS.get(seeds)
    return None if level is None or p_value is None else p_value <= level

"""Exact counting: pass@k, and a test of whether two policies solve equally often."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def pass_at_k(samples: int, solved: int, k: int) -> float:
    """Returns the chance that at least one of k of these samples, drawn without replacement, is
    solved: 1 - C(samples - solved, k) / C(samples, k), which estimates pass@k without bias (Chen et
    al. 2021, arXiv 2107.03374).

    >>> pass_at_k(4, 1, 2)
    0.5
    """
    if not 0 <= solved <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {samples} samples, of which {solved} are solved")
    every = math.comb(samples, k)
    # A quotient of integers is rounded once, however large they are.
    return (every - math.comb(samples - solved, k)) / every


def sign_flip_p(net_wins: Sequence[int]) -> float:
    """Returns how often the net wins' sum would be at least as far from 0 if each item's were as
    likely to be the other policy's: the exact two-sided p-value of the sign flip test by item.

    net_wins: of each item, samples that only the second policy solved less those that only the
    first did. With one sample per item it is McNemar's exact test.

    >>> sign_flip_p([1, 1, 1, 0])
    0.25
    """
    steps = [abs(each) for each in net_wins if each]
    total, found = sum(steps), sum(net_wins)
    # chance_of[u]: of a sum u over the items whose sign is plus; the net sum is then 2 u - total.
    chance_of = np.zeros(total + 1)
    chance_of[0] = 1.0
    for step in steps:
        shifted = np.zeros_like(chance_of)
        shifted[step:] = chance_of[:-step]
        chance_of = (chance_of + shifted) / 2
    far = np.abs(2 * np.arange(total + 1) - total) >= abs(found)
    return min(1.0, float(chance_of[far].sum()))


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns the p-values, corrected for their number (Holm 1979): at most 5 % of families of
    comparisons then have a false one at 0.05.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected = [0.0] * len(p_values)
    largest = 0.0
    by_size = sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank, place in enumerate(by_size):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected

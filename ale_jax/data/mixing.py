"""Samples of several domains in stated proportions, each a function of its position alone."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Domain:
    """ratio: of each `sum of all ratios` samples, how many are of these families."""

    name: str
    families: tuple[str, ...]
    ratio: int

    def __post_init__(self) -> None:
        if not self.families:
            raise ValueError(f"domain {self.name!r} has no families: name some")
        if self.ratio < 1:
            raise ValueError(f"ratio {self.ratio} must be at least 1, or leave out the domain")


@functools.cache
def mixing_order(ratios: tuple[int, ...]) -> tuple[int, ...]:
    """Which domain stands at each position; it repeats after sum(ratios).

    In every prefix of n samples, each domain's count differs from its share n * ratio / sum by
    less than 1. The how-manieth sample (from 0) of a domain may not come before its share has
    reached that number, and must come before its share has passed the next; of those that may come,
    the most urgent does. As each needs one position, that keeps all deadlines (Baruah et al. 1996).
    """
    total = sum(ratios)
    counts, order = [0] * len(ratios), []
    for position in range(total):
        may = [d for d, ratio in enumerate(ratios) if counts[d] * total // ratio <= position]
        # Rounded up; whoever stands first in the config is first among equals.
        domain = min(may, key=lambda d: -(-(counts[d] + 1) * total // ratios[d]))
        counts[domain] += 1
        order.append(domain)
    return tuple(order)


def place(position: int, ratios: tuple[int, ...]) -> tuple[int, int]:
    """The domain at `position`, and the how-manieth sample of it that is, from 0."""
    order = mixing_order(ratios)
    rounds, rest = divmod(position, len(order))
    domain = order[rest]
    return domain, rounds * ratios[domain] + order[:rest].count(domain)


def mix(pools: Sequence[Sequence[T]], ratios: tuple[int, ...], seed: int) -> Iterator[T]:
    """Endless; pool d has ratio d. Each pool is gone through in ever new orders."""
    assert len(pools) == len(ratios) and all(pools), [len(pool) for pool in pools]

    @functools.lru_cache(maxsize=2 * len(pools))
    def order(domain: int, epoch: int) -> list[int]:
        # A key that ends in 0 is the key without it: the first domain's order is a lone pool's.
        return np.random.default_rng([seed, epoch, domain]).permutation(len(pools[domain])).tolist()

    for position in itertools.count():
        domain, number = place(position, ratios)
        epoch, index = divmod(number, len(pools[domain]))
        yield pools[domain][order(domain, epoch)[index]]

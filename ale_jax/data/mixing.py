"""Samples from several domains in fixed proportions, each a function of its position alone."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


@functools.cache
def mixing_order(ratios: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the domain at each position; the order repeats after sum(ratios).

    In every prefix of n samples, each domain's count differs from its share n * ratio / sum by
    less than 1. Sample j (from 0) of a domain is released when the domain's share reaches j, and is
    due before the share exceeds j + 1. Of the released samples, the one with the earliest deadline
    is next. As each needs one position, all deadlines are met (Baruah et al. 1996).

        >>> mixing_order((2, 1))
        (0, 0, 1)
        >>> mixing_order((1, 1))
        (0, 1)
    """
    total = sum(ratios)
    counts, order = [0] * len(ratios), []
    for position in range(total):
        may = [d for d, ratio in enumerate(ratios) if counts[d] * total // ratio <= position]
        # Deadlines are rounded up. The domain that is first in the config wins ties.
        domain = min(may, key=lambda d: -(-(counts[d] + 1) * total // ratios[d]))
        counts[domain] += 1
        order.append(domain)
    return tuple(order)


def place(position: int, ratios: tuple[int, ...]) -> tuple[int, int]:
    """Returns the domain at `position`, and the index of the sample within that domain, from 0.

    >>> [place(position, (2, 1)) for position in range(6)]
    [(0, 0), (0, 1), (1, 0), (0, 2), (0, 3), (1, 1)]
    """
    order = mixing_order(ratios)
    rounds, rest = divmod(position, len(order))
    domain = order[rest]
    return domain, rounds * ratios[domain] + order[:rest].count(domain)


def end_of_epochs(sizes: Sequence[int], ratios: tuple[int, ...], epochs: int) -> int:
    """Returns after how many samples every pool has been passed through `epochs` times; those that
    are small for their ratio have been more often by then. A pool of size 0 has no say.

    >>> end_of_epochs([2, 3], (2, 1), 1), end_of_epochs([2, 0], (2, 1), 1)
    (9, 2)
    """
    order = mixing_order(ratios)
    ends = [0]
    for domain, (size, ratio) in enumerate(zip(sizes, ratios, strict=True)):
        rounds, rest = divmod(epochs * size - 1, ratio)
        places = [place for place, each in enumerate(order) if each == domain]
        ends.append(rounds * len(order) + places[rest] + 1 if size else 0)
    return max(ends)


def mix(pools: Sequence[Sequence[T]], ratios: tuple[int, ...], seed: int) -> Iterator[T]:
    """Yields samples without end, from pool d in the ratio d. Each pass through a pool has a new
    random order.

        >>> mixed = mix(["a", "b"], (2, 1), seed=0)
        >>> [next(mixed) for _ in range(6)]
        ['a', 'a', 'b', 'a', 'a', 'b']
    """
    assert len(pools) == len(ratios) and all(pools), [len(pool) for pool in pools]

    @functools.lru_cache(maxsize=2 * len(pools))
    def order(domain: int, epoch: int) -> list[int]:
        # A trailing 0 does not change the seed, so the first domain has the order of a lone pool.
        rng = np.random.default_rng([seed, epoch, domain])
        shuffled: list[int] = rng.permutation(len(pools[domain])).tolist()
        return shuffled

    for position in itertools.count():
        domain, number = place(position, ratios)
        epoch, index = divmod(number, len(pools[domain]))
        yield pools[domain][order(domain, epoch)[index]]

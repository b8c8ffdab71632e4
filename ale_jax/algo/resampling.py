"""The mathematics of IPA's chunk-level initialized resampling, arXiv 2512.24873 section 3.2.4.4.

One expert-like trajectory of K chunks is kept per task. An episode may start at its chunk k (0 to
K-1), after the expert's first k chunks; P_k is the policy's success rate from there. The counts are
a few integers per task, so the tests on them are exact and run on the host.

A chunk is named in three ways, here with K = 3:

    the start at it, k                          0  1  2    a task's curriculum, imitated chunks
    chunks left from that start on, K - k       3  2  1    the rates of a family; 0 left is success
    its distance from the end, j = K - 1 - k    2  1  0    discounts, gamma^j
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def anchor_starts(num_chunks: int, anchors: int, rng: np.random.Generator | None) -> list[int]:
    """Returns the starts of the `anchors` groups of a task; the first is 0.

    rng: draws the others from 1..K-1, without repetition while there are enough. None: spaces all
    evenly, floor(j (K-1) / (anchors-1)), so that one is the last chunk, from which the policy may
    succeed when it does not from any other. An expert of one chunk has only the start 0.

        >>> anchor_starts(num_chunks=7, anchors=3, rng=None)
        [0, 3, 6]
    """
    assert num_chunks >= 1 and anchors >= 2, (num_chunks, anchors)
    if rng is None:
        return [j * (num_chunks - 1) // (anchors - 1) for j in range(anchors)]
    drawn = 1 + rng.permutation(num_chunks - 1)
    return [0, *(int(drawn[j % len(drawn)]) if len(drawn) else 0 for j in range(anchors - 1))]


def starts_at_beginning(group: int, share: float) -> bool:
    """Tells whether a group, by its number, is among the `share` of groups that start at the
    beginning; these are spread evenly.

        >>> [group for group in range(9) if starts_at_beginning(group, share=1 / 3)]
        [2, 5, 8]
    """
    return math.floor((group + 1) * share) > math.floor(group * share)


def imitation_weights(
    start: int, num_chunks: int, reward: float, gamma: float, weight: float
) -> NDArray[np.float32]:
    """Returns the weights of log pi on the expert's chunks 0..start, float32 [start + 1]; Eq 10,
    first sum.

    weight * gamma^(K-1-i) R on chunk i, counted from 0: lambda_IL times the expert's own chunk
    return (Eq 7), up to and including the crucial chunk, which is the first that the group plays.
    The factor pi(c) in Eq 10 is read as the sampling measure, like mu(c) in Eq 9, because taken
    literally it would vanish as chunks get longer.

    An expert of 3 chunks, of which the group plays those from the second one on:

        >>> imitation_weights(start=1, num_chunks=3, reward=1.0, gamma=0.5, weight=2.0).tolist()
        [0.5, 1.0]
    """
    assert 0 <= start < num_chunks, (start, num_chunks)
    distance = num_chunks - 1 - np.arange(start + 1)
    return (weight * reward * gamma**distance).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class CrucialChunk:
    """A decisive chunk: P_k is significantly lower before it than after it.

    chunk, last: counted from 0. The crucial chunk is one of chunk..last, because no start between
    them was played.
    rate_before, rate_after: success rates from the start at `chunk`, and from the one after `last`.
    p_value: adjusted for the number of tests.
    """

    chunk: int
    last: int
    rate_before: float
    rate_after: float
    p_value: float


def crucial_chunks(
    successes_C: Sequence[int], attempts_C: Sequence[int], level: float = 0.05
) -> tuple[CrucialChunk, ...]:
    """Returns the crucial chunks of an expert, by the outcomes of episodes that started at each of
    its K.

    Each start with outcomes is compared with the next start that has some: a one-sided Fisher's
    exact test asks whether the later start has a higher success rate. It is valid for any count,
    whereas the pooled z test needs more outcomes, and rates further from 0 and 1, than a start has.
    Holm's step-down method bounds the probability of even one false positive by `level`, whatever
    the dependence between the tests, provided that the counts are examined once and did not decide
    when counting ended. In a run they are examined after every step, and under rollback the
    counting of a start ends with its success. There the result is exploratory, and the rate of
    false positives is not bounded.

    The last chunk cannot be tested, because nothing is left to be sampled after it.

    From the starts 0 and 1 one of 8 episodes succeeds, from the start 2 all do. So chunk 1 decides:

        >>> (found,) = crucial_chunks([1, 1, 8], [8, 8, 8])
        >>> found.chunk, found.last, found.rate_before, found.rate_after, round(found.p_value, 4)
        (1, 1, 0.125, 1.0, 0.0014)
    """
    counts = list(zip(successes_C, attempts_C, strict=True))
    for k, (won, played) in enumerate(counts):
        if not 0 <= won <= played:
            raise ValueError(f"{won} successes of {played} attempts at start {k}: give counts")
    asked = list(itertools.pairwise(k for k, (_, played) in enumerate(counts) if played))
    adjusted = holm([fisher_less(*counts[a], *counts[b]) for a, b in asked])
    rates = [won / played if played else 0.0 for won, played in counts]
    return tuple(
        CrucialChunk(a, b - 1, rates[a], rates[b], p)
        for (a, b), p in zip(asked, adjusted, strict=True)
        if p <= level
    )


def decision_weights(rates: Sequence[tuple[int, float]], num_chunks: int) -> NDArray[np.float32]:
    """Returns what each of the expert's chunks changes, max(0, P(k+1) - P(k)), float32 [C].

    The advantage of a chunk in the tree whose nodes are the expert's states (as in Tree-GRPO, arXiv
    2509.21240). rates: as in `gamma_of_decisions`. Between two starts with a rate the change is
    spread evenly; before the first of them nothing is known, and the weight is 0.

    The rates are 1/4 with three chunks left, 3/4 with two, and 3/4 with one:

        >>> decision_weights([(3, 0.25), (2, 0.75), (1, 0.75)], num_chunks=3).tolist()
        [0.5, 0.0, 0.25]
    """
    weight_C = np.zeros(num_chunks, np.float32)
    known = [(left, rate) for left, rate in sorted(rates) if left <= num_chunks]
    for (a, later), (b, earlier) in itertools.pairwise([(0, 1.0), *known]):
        weight_C[num_chunks - b : num_chunks - a] = max(0.0, later - earlier) / (b - a)
    return weight_C


def gamma_of_decisions(rates: Sequence[tuple[int, float]]) -> float | None:
    """Returns the discount per chunk with which IPA's weights lie where the decisions do.

    rates: (chunks left to play, success rate from there), for some starts; with no chunk left the
    rate is 1. A decision is what a chunk changes, P(k+1) - P(k). Between two starts it is spread
    evenly, and where the rate does not rise there is none. The weights gamma^j of the chunks that
    are j = 0, 1, ... from the end have the mean distance of the decisions from the end: 1 if these
    lie evenly or early, where no discount fits, and less the later they are. None if no decision
    was measured.

    Of two chunks, the last changes 3/4 and the first 1/4, a mean distance of 1/4 from the end. The
    weights 1 and gamma have the distance gamma / (1 + gamma):

        >>> round(gamma_of_decisions([(1, 0.25), (2, 0.0)]), 6)
        0.333333
    """
    known = [(0, 1.0), *sorted(rates)]
    parts = [(a, b, max(0.0, p - q)) for (a, p), (b, q) in itertools.pairwise(known)]
    total, num_chunks = sum(drop for _, _, drop in parts), known[-1][0]
    if num_chunks < 2 or total == 0.0:
        return None
    mean = sum(drop * (a + b - 1) / 2 for a, b, drop in parts) / total
    distance = np.arange(num_chunks)

    def too_high(gamma: float) -> bool:
        return bool(np.average(distance, weights=gamma**distance) > mean)

    low, high = 0.0, 1.0
    if not too_high(high):
        return 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if too_high(middle) else (middle, high)
    return high


def fisher_less(won_a: int, played_a: int, won_b: int, played_b: int) -> float:
    """Returns the p-value of "a succeeds less often than b" (Fisher 1935): the probability that a
    has at most `won_a` of the successes if all outcomes are assigned at random.

    Two failures and two successes can be assigned in 6 ways, of which one is this one:

        >>> fisher_less(0, 2, 2, 2) == 1 / 6
        True
    """
    won = won_a + won_b
    ways = sum(
        math.comb(played_a, i) * math.comb(played_b, won - i)
        for i in range(max(0, won - played_b), won_a + 1)
    )
    return ways / math.comb(played_a + played_b, won)


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns the p-values adjusted for their number (Holm 1979), in the given order: of m, the
    i-th smallest is multiplied by (m + 1 - i), raised to those before it, and capped at 1.

        >>> holm([0.5, 0.125, 0.75])
        [1.0, 0.375, 1.0]
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, p_values[i] * (len(p_values) - rank)))
        adjusted[i] = largest
    return adjusted

"""Compares the credit of chunks with what they were worth.

The worth of chunk k is P(k+1) - P(k), where P(k) is the policy's chance of success from the state
before it, and P after the last chunk is the reward.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ale_jax.monitor.evaluations import wilson_interval


@dataclasses.dataclass(frozen=True, eq=False)
class Attempt:
    """One trajectory. The arrays have one value per chunk. low_C, high_C: the 95 % interval of the
    worth; credit: by algorithm."""

    group: int
    family: str
    reward: float
    chance_C: np.ndarray
    worth_C: np.ndarray
    low_C: np.ndarray
    high_C: np.ndarray
    credit: Mapping[str, np.ndarray]

    @property
    def decided_C(self) -> np.ndarray:
        """Whether the interval of the worth excludes 0."""
        return (self.low_C > 0) | (self.high_C < 0)


def attempt(record: Mapping[str, Any], rollouts: int) -> Attempt:
    """From a trajectory of `credit_truth.json`."""
    won, reward = record["successes"], float(record["reward"] > 0)
    before = [(w / rollouts, *wilson_interval(w, rollouts)) for w in won]
    after = [*before[1:], (reward, reward, reward)]  # the end is known
    worth = [difference(*pair) for pair in zip(before, after, strict=True)]
    return Attempt(
        record["group"],
        record["family"],
        reward,
        np.array([chance for chance, _, _ in before]),
        *map(np.array, zip(*worth, strict=True)),
        {name: np.array(credit_C) for name, credit_C in record["credit"].items()},
    )


Interval = tuple[float, float, float]  # estimate, lower end, upper end


def difference(before: Interval, after: Interval) -> Interval:
    """after - before, for independent estimates (Newcombe 1998, method 10: the distances of both
    Wilson intervals to their estimates, added as squares)."""
    (p, p_low, p_high), (q, q_low, q_high) = before, after
    low = q - p - math.hypot(q - q_low, p_high - p)
    return q - p, low, q - p + math.hypot(q_high - q, p - p_low)


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's, with mean ranks for ties. 0 if either is constant: it then orders nothing."""
    rx, ry = _ranks(x), _ranks(y)
    spread = rx.std() * ry.std()
    return float(((rx - rx.mean()) * (ry - ry.mean())).mean() / spread) if spread else 0.0


def _ranks(x: np.ndarray) -> np.ndarray:
    # Rounding must not break ties.
    _, place, count = np.unique(np.round(x, 6), return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]


def over_all(attempts: Sequence[Attempt], name: str) -> float:
    """The rank correlation of credit and worth over the chunks of all attempts."""
    credit = np.concatenate([a.credit[name] for a in attempts])
    return rank_correlation(credit, np.concatenate([a.worth_C for a in attempts]))


def within(attempts: Sequence[Attempt], name: str) -> float:
    """The mean of the rank correlations inside each attempt: whether the credit finds the chunks
    that mattered. Credit that is the same for all chunks counts as 0. Attempts in which no chunk is
    decided are left out, because their worth is noise."""
    asked = [a for a in attempts if a.decided_C.any()]
    return float(np.mean([_inside(a, name) for a in asked])) if asked else 0.0


@functools.cache
def _inside(attempt: Attempt, name: str) -> float:
    return rank_correlation(attempt.credit[name], attempt.worth_C)


def same_sign(attempts: Sequence[Attempt], name: str) -> float:
    """The share of decided chunks whose credit has the sign of their worth. 0 has no sign."""
    agree = [np.sign(a.credit[name]) == np.sign(a.worth_C) for a in attempts]
    return float(np.concatenate([x[a.decided_C] for x, a in zip(agree, attempts)]).mean())


def blame(attempts: Sequence[Attempt], name: str) -> float:
    """The share of failures whose lowest credit is on the chunk that lost most. Chunks that share
    the lowest credit share the blame."""
    shares = []
    for a in (a for a in attempts if not a.reward and a.decided_C.any()):
        lowest_C = np.isclose(a.credit[name], a.credit[name].min(), rtol=0.0, atol=1e-6)
        shares.append(lowest_C[np.argmin(a.worth_C)] / lowest_C.sum())
    return float(np.mean(shares)) if shares else 0.0


def bootstrap(
    figure: Callable[[Sequence[Attempt], str], float],
    attempts: Sequence[Attempt],
    name: str,
    draws: int = 1000,
) -> tuple[float, float]:
    """The 95 % percentile interval over draws of as many attempts, with replacement."""
    rng = np.random.default_rng(0)
    found = [
        figure([attempts[i] for i in rng.integers(0, len(attempts), len(attempts))], name)
        for _ in range(draws)
    ]
    low, high = np.percentile(found, [2.5, 97.5])
    return float(low), float(high)

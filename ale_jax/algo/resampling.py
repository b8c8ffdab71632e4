"""Chunk-level initialized resampling of IPA, arXiv 2512.24873 section 3.2.4.4: the mathematics.

An expert-like trajectory of K chunks is kept per task. An episode may start at its chunk k, 0 to
K-1, after the expert's first k chunks; P_k is the policy's success from there. Counts are a few
integers per task: the tests on them are exact, and run on the host.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np

from ale_jax.algo.hypers import require_choice, require_range

NONE, ROLLBACK, PARALLEL = "none", "rollback", "parallel"
OWN, ORACLE = "own", "oracle"
ANCHOR_CHOICES = ("uniform", "random")


@dataclasses.dataclass(frozen=True)
class ResamplingHypers:
    """Where training episodes start. The paper gives none of these numbers.

    scheme: "none": at the task's beginning. "rollback": Sequential Rollback, at the expert's last
        chunk, and one chunk earlier whenever the tail is mastered. "parallel": Parallelized
        Initialization, at several anchors at once.
    teacher: "own": only the policy's own successes become experts. "oracle": each task has the
        oracle's from the start, until a success of the policy's own takes its place.
    anchors: parallel: so many groups in a row share their task, the first of them from the task's
        beginning, each of the others from an anchor of its own.
    anchor_choice: "uniform": evenly over the expert's chunks; "random": drawn anew each time.
    threshold: rollback: a start is mastered when the lower end of the 95 % Wilson interval of its
        success is at least this. 0.4 is 3 of 3 successes, or 10 of 15.
    window: outcomes per (task, start) that estimates look at, the latest.
    memory: versions after which an outcome says nothing about the policy of now.
    imitation_weight: lambda_IL of Eq 10; 0 switches the term off.
    """

    scheme: str = "none"
    teacher: str = "own"
    anchors: int = 4
    anchor_choice: str = "uniform"
    threshold: float = 0.4
    window: int = 32
    memory: int = 100
    imitation_weight: float = 0.1

    def __post_init__(self) -> None:
        require_choice("scheme", self.scheme, (NONE, ROLLBACK, PARALLEL))
        require_choice("teacher", self.teacher, (OWN, ORACLE))
        require_choice("anchor_choice", self.anchor_choice, ANCHOR_CHOICES)
        require_range("threshold", self.threshold, 0.0, 0.99, "no interval's lower end reaches 1")
        require_range("imitation_weight", self.imitation_weight, 0.0, 1e6, "0 switches it off")
        for name in ("anchors", "window", "memory"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} must be at least 1")
        if self.scheme == PARALLEL and self.anchors < 2:
            raise ValueError(
                f"anchors {self.anchors}: the first starts at the task's beginning, so parallel "
                "needs 2 or more: raise it, or set scheme to none"
            )

    @property
    def wants_oracles(self) -> bool:
        return self.scheme != NONE and self.teacher == ORACLE

    @property
    def groups_per_task(self) -> int:
        """Groups in a row that share their task."""
        return self.anchors if self.scheme == PARALLEL else 1


def anchor_starts(num_chunks: int, anchors: int, rng: np.random.Generator | None) -> list[int]:
    """The start of each of the `anchors` groups of a task, the first of them 0.

    rng: draws the others from 1..K-1, no two alike while there are enough; None spreads all evenly,
    floor(j (K-1) / (anchors-1)), so that one is the last chunk: where nothing else succeeds yet,
    that may. An expert of one chunk has no start but 0.
    """
    assert num_chunks >= 1 and anchors >= 2, (num_chunks, anchors)
    if rng is None:
        return [j * (num_chunks - 1) // (anchors - 1) for j in range(anchors)]
    drawn = 1 + rng.permutation(num_chunks - 1)
    return [0, *(int(drawn[j % len(drawn)]) if len(drawn) else 0 for j in range(anchors - 1))]


def imitation_weights(
    start: int, num_chunks: int, reward: float, gamma: float, weight: float
) -> np.ndarray:
    """Weights of log pi on the expert's chunks 0..start, float32 [start + 1]; Eq 10, first sum.

    weight * gamma^(K-1-i) R on chunk i counted from 0: lambda_IL times the expert's own chunk
    return (Eq 7), up to and including the chunk that the group was to play first, the crucial one.
    The factor pi(c) that Eq 10 prints is read as the sampling measure, as mu(c) is in Eq 9: taken
    literally it would vanish with a chunk's length.
    """
    assert 0 <= start < num_chunks, (start, num_chunks)
    distance = num_chunks - 1 - np.arange(start + 1)
    return (weight * reward * gamma**distance).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class CrucialChunk:
    """A chunk that decides: P_k before it is significantly lower than after it was given.

    chunk, last: counted from 0; one of chunk..last, where no start between them was played.
    rate_before, rate_after: of success from the start at `chunk`, and from the one after `last`.
    p_value: adjusted for all that was asked.
    """

    chunk: int
    last: int
    rate_before: float
    rate_after: float
    p_value: float


def crucial_chunks(
    successes_C: Sequence[int], attempts_C: Sequence[int], level: float = 0.05
) -> tuple[CrucialChunk, ...]:
    """The crucial chunks of an expert, by the outcomes of episodes that started at each of its K.

    Each start with outcomes is asked whether starting at the next one that has some raises the
    success, by Fisher's exact test, one-sided: it holds at any count, where the pooled z test needs
    more outcomes, and rates further from 0 and 1, than a start has. Holm's step-down method keeps
    the chance of even one false chunk among them at `level`, whatever their dependence, if counts
    are looked at once and did not decide when counting ended. In a run they are looked at after
    every step, and under rollback a start's counting ends with its success: there the figure is
    for exploring, and says nothing of false alarms.

    The last chunk cannot be asked about: after it nothing is left to be sampled.
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


def fisher_less(won_a: int, played_a: int, won_b: int, played_b: int) -> float:
    """p-value of "a succeeds less often than b" (Fisher 1935): the chance of at most `won_a` of the
    successes falling to a, if all outcomes were dealt out at random."""
    won = won_a + won_b
    ways = sum(
        math.comb(played_a, i) * math.comb(played_b, won - i)
        for i in range(max(0, won - played_b), won_a + 1)
    )
    return ways / math.comb(played_a + played_b, won)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values adjusted for their number (Holm 1979), in the order given: of m, the i-th
    smallest times (m + 1 - i), no smaller than those before it, at most 1."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, p_values[i] * (len(p_values) - rank)))
        adjusted[i] = largest
    return adjusted

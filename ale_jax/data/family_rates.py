"""Success rates by how many chunks are left, over all tasks of a family; and starts drawn by them.

A rate per task is known only after the task was played several times. The tasks of a family are
alike, so what one of them shows holds for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

# The weight of a later start at which nothing can be learned, as all fail or all succeed; it keeps
# its rate up to date. The largest weight is 0.25.
LEAST_WEIGHT = 0.02
ENOUGH = 16  # outcomes, for a rate that is shown


class FamilyRates:
    """window: about how many of the latest outcomes an estimate uses; older ones fade."""

    def __init__(self, window: int):
        self._window = window
        self._counts: dict[str, dict[int, tuple[float, float]]] = {}

    def record(self, family: str, left: int, successes: Sequence[bool]) -> None:
        """Adds the outcomes of episodes that had `left` chunks of the expert left to play."""
        won, played = self._of_family(family).get(left, (0.0, 0.0))
        kept = max(0.0, 1.0 - len(successes) / self._window)
        counts = won * kept + sum(successes), played * kept + len(successes)
        self._of_family(family)[left] = counts

    def rate(self, family: str, left: int) -> float:
        """Of success. One success and one failure more than were seen are counted, so that the
        unknown is 1/2. Nothing left to play is success."""
        if left <= 0:
            return 1.0
        won, played = self._of_family(family).get(left, (0.0, 0.0))
        return (won + 1.0) / (played + 2.0)

    def known(self, family: str) -> list[tuple[int, float]]:
        """(chunks left, rate) of each start with at least ENOUGH outcomes."""
        counts = self._counts.get(family, {})
        return [(left, self.rate(family, left)) for left, (_, n) in counts.items() if n >= ENOUGH]

    def families(self) -> list[str]:
        return list(self._counts)

    def draw(self, family: str, num_chunks: int, rng: np.random.Generator) -> int:
        """A start in 0..num_chunks-1, by P (1 - P), the variance of its outcomes: a group of equal
        outcomes teaches nothing.

        The beginning is drawn with its variance, relative to the largest of all starts, as the
        probability. It is preferred because all chunks are practised there, and a later start helps
        only as far as outcomes differ more. The others are drawn in proportion to their variance.
        """
        rates = np.array([self.rate(family, num_chunks - k) for k in range(num_chunks)])
        variance = rates * (1.0 - rates)
        if rng.random() < variance[0] / variance.max():
            return 0
        weights = np.maximum(variance[1:], LEAST_WEIGHT)
        return 1 + int(rng.choice(num_chunks - 1, p=weights / weights.sum()))

    def to_json(self) -> list[list[Any]]:
        return [
            [family, [[left, *counts] for left, counts in by_left.items()]]
            for family, by_left in self._counts.items()
        ]

    def load(self, values: Sequence[Sequence[Any]]) -> None:
        """Restores what `to_json` returned."""
        for family, by_left in values:
            self._counts[family] = {left: (won, played) for left, won, played in by_left}

    def _of_family(self, family: str) -> dict[int, tuple[float, float]]:
        return self._counts.setdefault(family, {})

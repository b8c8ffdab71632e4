"""Outcomes of episodes by where they start in an expert's trajectory, which decide where the next
ones start: of a task (Curriculum), or of a family of tasks (FamilyRates)."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ale_jax.records import Task

# The weight of a later start at which nothing can be learned, as all fail or all succeed; it keeps
# its rate up to date. The largest weight is 0.25.
LEAST_WEIGHT = 0.02
ENOUGH = 16  # outcomes, for a rate that is shown


@dataclasses.dataclass
class _TaskOutcomes:
    """The start that a task practises, and (version, success) by start, the latest last."""

    start: int = 0
    outcomes: dict[int, deque[tuple[int, bool]]] = dataclasses.field(default_factory=dict)


class Curriculum:
    """The start that each task practises, and the outcomes of its episodes by their start.

    The rule by which starts move is its owner's.

    window: number of outcomes kept per (task, start). memory: number of versions after which an
    outcome is no longer counted, because the policy has changed.

    With a memory of two versions, an outcome of version 1 does not count at version 3:

        >>> curriculum, task = Curriculum(window=8, memory=2), Task("files", 7, "train")
        >>> curriculum.record(task, start=2, version=1, successes=[True])
        >>> curriculum.record(task, start=2, version=3, successes=[True, False])
        >>> curriculum.counts(task, start=2, version=3)
        (1, 2)
    """

    def __init__(self, window: int, memory: int):
        self._window, self._memory = window, memory
        self._tasks: dict[Task, _TaskOutcomes] = {}

    def start(self, task: Task) -> int:
        """Returns the start that `task` practises; 0 before it was moved."""
        return self._of_task(task).start

    def move(self, task: Task, start: int) -> None:
        """Lets `task` practise another start, which counts from 0."""
        assert start >= 0, start
        self._of_task(task).start = start

    def record(self, task: Task, start: int, version: int, successes: Iterable[bool]) -> None:
        """Adds the outcomes of episodes from `start` that were trained on at `version`."""
        empty: deque[tuple[int, bool]] = deque(maxlen=self._window)
        kept = self._of_task(task).outcomes.setdefault(start, empty)
        kept.extend((version, bool(success)) for success in successes)

    def counts(self, task: Task, start: int, version: int) -> tuple[int, int]:
        """Returns successes and attempts from `start`, of the outcomes that count at `version`."""
        outcomes = self._of_task(task).outcomes.get(start, ())
        fresh = [success for then, success in outcomes if version - then < self._memory]
        return sum(fresh), len(fresh)

    def forget_after(self, task: Task, shared: int) -> None:
        """Forgets the outcomes of starts after `shared`. To be called when the task has a new
        expert that shares its first `shared` turns with the old one: later starts are other states.
        """
        outcomes = self._of_task(task).outcomes
        for start in [start for start in outcomes if start > shared]:
            del outcomes[start]

    def tasks(self) -> list[Task]:
        """Returns the tasks that have a start or outcomes, in the order in which they came."""
        return list(self._tasks)

    def to_json(self) -> list[dict[str, Any]]:
        """Returns the state for a checkpoint, as `load` takes it."""
        return [
            {
                "task": dataclasses.asdict(task),
                "start": of_task.start,
                "outcomes": [
                    [start, [list(outcome) for outcome in outcomes]]
                    for start, outcomes in of_task.outcomes.items()
                ],
            }
            for task, of_task in self._tasks.items()
        ]

    def load(self, values: Sequence[Mapping[str, Any]]) -> None:
        """Restores what `to_json` returned."""
        for each in values:
            of_task = self._tasks[Task(**each["task"])] = _TaskOutcomes(each["start"])
            for start, outcomes in each["outcomes"]:
                kept = (tuple(outcome) for outcome in outcomes)
                of_task.outcomes[start] = deque(kept, maxlen=self._window)

    def _of_task(self, task: Task) -> _TaskOutcomes:
        return self._tasks.setdefault(task, _TaskOutcomes())


class FamilyRates:
    """Success rates by how many chunks are left, over all tasks of a family; draws starts by them.

    A rate per task is known only after the task was played several times. The tasks of a family are
    alike, so what one of them shows holds for the others.

    window: about how many of the latest outcomes an estimate uses; older ones fade.

    Two of three episodes with two chunks left succeeded. The rate counts one more of either kind:

        >>> rates = FamilyRates(window=64)
        >>> rates.record("files", left=2, successes=[True, True, False])
        >>> rates.rate("files", left=2), rates.rate("files", left=3), rates.rate("files", left=0)
        (0.6, 0.5, 1.0)
    """

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
        """Returns the rate of success. One success and one failure more than were seen are counted,
        so that the unknown is 1/2. Nothing left to play is success."""
        if left <= 0:
            return 1.0
        won, played = self._of_family(family).get(left, (0.0, 0.0))
        return (won + 1.0) / (played + 2.0)

    def known(self, family: str) -> list[tuple[int, float]]:
        """Returns (chunks left, rate) of each start with at least ENOUGH outcomes."""
        counts = self._counts.get(family, {})
        return [(left, self.rate(family, left)) for left, (_, n) in counts.items() if n >= ENOUGH]

    def families(self) -> list[str]:
        """Returns the families that have outcomes."""
        return list(self._counts)

    def draw(self, family: str, num_chunks: int, rng: np.random.Generator) -> int:
        """Draws a start in 0..num_chunks-1, by P (1 - P), the variance of its outcomes: a group of
        equal outcomes teaches nothing.

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
        """Returns the state for a checkpoint, as `load` takes it."""
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

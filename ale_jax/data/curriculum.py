"""Where the episodes of each task start, and how those ended that started there."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ale_jax.records import Task


@dataclasses.dataclass
class _Lesson:
    """Of a task: the start that is practised, and (version, success) by the start, latest last."""

    start: int = 0
    outcomes: dict[int, deque[tuple[int, bool]]] = dataclasses.field(default_factory=dict)


class Curriculum:
    """The state of the curriculum. It decides nothing: whoever holds it knows the rule.

    window: outcomes that are kept of each (task, start). memory: versions after which they are not
    counted any more, because the policy has become another.
    """

    def __init__(self, window: int, memory: int):
        self._window, self._memory = window, memory
        self._lessons: dict[Task, _Lesson] = {}

    def start(self, task: Task) -> int:
        return self._lesson(task).start

    def move(self, task: Task, start: int) -> None:
        assert start >= 0, start
        self._lesson(task).start = start

    def record(self, task: Task, start: int, version: int, successes: Iterable[bool]) -> None:
        """Notes how episodes ended that started there, trained on at `version`."""
        empty: deque = deque(maxlen=self._window)
        kept = self._lesson(task).outcomes.setdefault(start, empty)
        kept.extend((version, bool(success)) for success in successes)

    def counts(self, task: Task, start: int, version: int) -> tuple[int, int]:
        """Successes and attempts from `start`, of those that still count at `version`."""
        outcomes = self._lesson(task).outcomes.get(start, ())
        fresh = [success for then, success in outcomes if version - then < self._memory]
        return sum(fresh), len(fresh)

    def forget_after(self, task: Task, shared: int) -> None:
        """The task has another expert, of which only the first `shared` turns are the same: what
        happened from later starts was another state's."""
        outcomes = self._lesson(task).outcomes
        for start in [start for start in outcomes if start > shared]:
            del outcomes[start]

    def tasks(self) -> list[Task]:
        return list(self._lessons)

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "task": dataclasses.asdict(task),
                "start": lesson.start,
                "outcomes": [
                    [start, [list(outcome) for outcome in outcomes]]
                    for start, outcomes in lesson.outcomes.items()
                ],
            }
            for task, lesson in self._lessons.items()
        ]

    def load(self, values: Sequence[Mapping[str, Any]]) -> None:
        """Takes up what `to_json` gave."""
        for each in values:
            lesson = self._lessons[Task(**each["task"])] = _Lesson(each["start"])
            for start, outcomes in each["outcomes"]:
                kept = (tuple(outcome) for outcome in outcomes)
                lesson.outcomes[start] = deque(kept, maxlen=self._window)

    def _lesson(self, task: Task) -> _Lesson:
        return self._lessons.setdefault(task, _Lesson())

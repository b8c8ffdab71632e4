"""What became of an asynchronous run's groups and episodes over all its lives, by watch.py's notes.

It is known independently of what the run records. `schedule_agrees` compares it with the run's own
schedule.jsonl.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SCHEDULE_FILE = "schedule.jsonl"

Member = tuple[int, int]  # group, and attempt within the group


@dataclasses.dataclass
class History:
    """steps: the groups of each step. dropped: groups, with the step after which they were dropped.
    An interruption undoes what came after the restored checkpoint.

    kept, replayed: episodes that could be kept at an interruption. An episode can be kept if it had
    come back with a verdict, was not trained on as of the restored checkpoint, was sampled by
    versions that this checkpoint knows, and is not too old for the next step. It is kept if it has
    not begun again when the resumed run is interrupted or ends. A life of the run that makes no
    step does not count, because the next one must keep the same episodes.

    oldest: the highest age of a group that was trained on, in versions.
    """

    steps: dict[int, list[int]] = dataclasses.field(default_factory=dict)
    dropped: dict[int, int] = dataclasses.field(default_factory=dict)
    oldest: int = 0
    kept: int = 0
    replayed: int = 0

    def undo_after(self, step: int) -> None:
        self.steps = {n: groups for n, groups in self.steps.items() if n <= step}
        self.dropped = {group: n for group, n in self.dropped.items() if n < step}

    @property
    def trained(self) -> list[int]:
        return [group for groups in self.steps.values() for group in groups]

    @property
    def closed(self) -> set[int]:
        return {*self.trained, *self.dropped}

    def lost(self, open_groups: Iterable[int], taken: Iterable[int]) -> set[int]:
        """Groups that were taken from the task stream, and are nowhere."""
        return {*taken} - self.closed - {*open_groups}

    def trained_twice(self) -> int:
        return len(self.trained) - len({*self.trained})


def read_history(path: Path, max_age: int) -> History:
    return follow(map(json.loads, path.read_text().splitlines()), max_age)


def follow(lines: Iterable[dict[str, Any]], max_age: int) -> History:
    """max_age: of a group that may be trained on."""
    lives = _Lives(max_age)
    for line in lines:
        lives.note(line)
    lives.count()
    return lives.history


class _Lives:
    def __init__(self, max_age: int):
        self.history, self._max_age = History(), max_age
        self._step = 0
        self._has_trained = False  # in this life
        self._back: dict[Member, list[int]] = {}  # oldest and newest version of each
        self._wanted: set[Member] = set()
        self._begun: set[Member] = set()
        self._came: set[Member] = set()  # in this life

    def note(self, line: dict[str, Any]) -> None:
        match line["kind"]:
            case "restored":
                self.count()
                self._restore(line["step"])
            case "begun":
                self._begun.add(tuple(line["member"]))
            case "back":
                self._back[tuple(line["member"])] = line["versions"]
                self._came.add(tuple(line["member"]))
            case "dropped":
                self.history.dropped[line["group"]] = self._step
            case "trained":
                self._step, self._has_trained = line["step"], True
                self.history.steps[self._step] = line["groups"]
                self.history.oldest = max(self.history.oldest, line["oldest"])

    def _restore(self, step: int) -> None:
        self._step, self._has_trained = step, False
        self._begun, self._came = set(), set()
        self.history.undo_after(step)
        closed = self.history.closed
        # Newer versions were lost, and other weights will have their numbers.
        self._back = {m: v for m, v in self._back.items() if max(v) <= step}
        self._wanted = {
            member
            for member, (oldest, _) in self._back.items()
            if member[0] not in closed and step - oldest <= self._max_age
        }

    def count(self) -> None:
        """Judges the interruption that this life followed."""
        if self._has_trained:
            again = self._wanted & self._begun
            self.history.replayed += len(again)
            self.history.kept += len(self._wanted) - len(again)
            for member in again - self._came:
                del self._back[member]


def schedule_agrees(folder: Path, history: History) -> bool | None:
    """Whether the run's own schedule names the same groups for each step; None without a schedule.
    This is the only place that reads it."""
    path = folder / SCHEDULE_FILE
    if not path.exists():
        return None
    lines = map(json.loads, path.read_text().splitlines())
    named = {line["step"]: [group["index"] for group in line["groups"]] for line in lines}
    return named == history.steps

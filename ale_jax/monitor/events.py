"""events.jsonl: what happened to the system, as opposed to the policy."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from ale_jax.files import LineAppender, Lines, parse_json, read_lines
from ale_jax.monitor.text import clip

EVENTS_FILE = "events.jsonl"
MAX_DETAIL_CHARS = 2000
MAX_TIME = 1e11  # the year 5138
GROUP_DROPPED = "group_dropped"  # an event with the fields:
DROPPED_FIELDS = ("group", "reason", "family", "item", "statuses")
GROUP_REOPENED = "group_reopened"  # the field "group": it was dropped, and is played again
ATTEMPT_FAILED = "attempt_failed"  # the field "status": why
ACTOR_LOST = "actor_lost"
CONFIG_CHANGED = "config_changed"  # a run was resumed with these changes
WORLDS_CHANGED = "worlds_changed"  # a run was resumed, and these families are others than before
HISTORY_REWRITTEN = "history_rewritten"  # the agent begins a conversation with each call
NOT_SHOWN = "not_shown"  # what agents sent and the policy does not see; the detail names it
NOTHING_TRAINED = "nothing_trained"  # steps in a row left the policy as it was; the detail says why


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that happened in a run. time: seconds since the epoch; kind: "actor_lost",
    "sandbox_lost", "checkpoint_saved", ..."""

    time: float
    kind: str
    detail: str
    fields: dict[str, str | int | float | bool | None]


class Recorder(Protocol):
    """The signature of `EventLog.record`."""

    def __call__(self, kind: str, detail: str, **fields: str | int) -> None: ...


class EventLog:
    """Appends events as they happen. It is never truncated on resume, because what happened after
    the checkpoint remains true. Of a group that was dropped then, GROUP_REOPENED says that this
    does not hold any more."""

    def __init__(self, workdir: Path, clock: Callable[[], float] = time.time):
        self._lines = LineAppender(Path(workdir) / EVENTS_FILE)
        self._clock = clock

    def record(self, kind: str, detail: str, **fields: str | int | float | bool | None) -> None:
        """Writes one event. Texts are truncated, because they may come from a sandbox.

        Raises:
          ValueError: a field is not a plain value, or is named "time".
        """
        event = {"time": self._clock(), "kind": kind, "detail": clip(detail, MAX_DETAIL_CHARS)}
        if "time" in fields:
            raise ValueError('an event\'s "time" is written by the log; rename the field')
        self._lines.append(event | {name: _plain(name, value) for name, value in fields.items()})

    def close(self) -> None:
        self._lines.close()

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class EarlyEvents:
    """Records events before the log can be opened, and passes them on once it is.

    The log is opened with the run's other records, which are truncated to the restored checkpoint.
    The restore therefore comes first, and events during it are kept until the log is open.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[str, str, dict[str, Any]]] = []
        self._log: EventLog | None = None

    def record(self, kind: str, detail: str, **fields: str | int | float | bool | None) -> None:
        if self._log is None:
            self._kept.append((kind, detail, fields))
        else:
            self._log.record(kind, detail, **fields)

    def open(self, log: EventLog) -> None:
        """Writes what was kept to `log`, where all later events go."""
        for kind, detail, fields in self._kept:
            log.record(kind, detail, **fields)
        self._kept, self._log = [], log


def read_events(path: Path) -> Lines[Event]:
    """Returns the events of an events.jsonl; see `files.read_lines` for what is tolerated."""
    return read_lines(Path(path), _parse_event)


def readable_events(path: Path) -> Iterator[Event]:
    """Yields the events of an events.jsonl, without lines that are damaged: for counts, which
    neither damage nor the size of the file may prevent."""
    with Path(path).open("rb") as file:
        for line in file:
            with contextlib.suppress(
                KeyError, TypeError, ValueError, AttributeError, RecursionError
            ):
                yield _parse_event(parse_json(line))


def dropped_groups(events: Iterable[Event]) -> list[Event]:
    """Returns the GROUP_DROPPED events that still hold, in their order."""
    of_groups = [event for event in events if event.kind in (GROUP_DROPPED, GROUP_REOPENED)]
    hold, reopened = [], set()
    for event in reversed(of_groups):
        group = event.fields.get("group")
        if event.kind == GROUP_REOPENED:
            reopened.add(group)
        elif group not in reopened:
            hold.append(event)
    return hold[::-1]


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return clip(value, MAX_DETAIL_CHARS)
    if value is None or isinstance(value, bool | int | float):
        return value
    raise ValueError(f"event field {name!r} is {value!r:.80}; expected text, a number or a bool")


def _parse_event(line: dict[str, Any]) -> Event:
    moment, kind, detail = float(line.pop("time")), line.pop("kind"), line.pop("detail")
    if not 0 <= moment < MAX_TIME:
        raise ValueError(f"time {moment} is not in seconds since the epoch")
    if not isinstance(kind, str) or not isinstance(detail, str):
        raise TypeError("kind and detail must be text")
    return Event(moment, kind, detail, {name: _plain(name, value) for name, value in line.items()})

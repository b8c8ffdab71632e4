"""Sessions on disk: one folder each, with a log of one line per event, and long outputs."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from ale_jax.agent.assistant.events import Asked, Event, Started, from_json, to_json
from ale_jax.files import MAX_LINE_BYTES, LineAppender, encode_line, read_lines

ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{8}")
EVENTS, OUTPUTS, LOCK = "events.jsonl", "outputs", "lock"


@dataclasses.dataclass(frozen=True)
class SessionInfo:
    """A session in the list. title: beginning of the first request. changed: seconds since 1970."""

    id: str
    cwd: str
    title: str
    changed: float


class SessionLog:
    """The log of one session, held by one process at a time. It is closed by `close`."""

    def __init__(self, folder: Path):
        self.id, self.folder = folder.name, folder
        self.outputs = folder / OUTPUTS
        folder.mkdir(parents=True, exist_ok=True)
        # What is said in a session is its user's alone.
        folder.chmod(0o700)
        self._lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._lines = LineAppender(folder / EVENTS)
        except BlockingIOError:
            os.close(self._lock)
            raise ValueError(
                f"session {self.id} is in use by another process; end that one, or fork it"
            ) from None
        except BaseException:
            os.close(self._lock)
            raise

    def append(self, event: Event) -> None:
        """Appends an event, which is in the file when this returns, also if the process is killed
        then."""
        record = to_json(event)
        if len(encode_line(record)) > MAX_LINE_BYTES:
            raise ValueError(
                f"an event of kind {event.kind} is longer than {MAX_LINE_BYTES} bytes; shorten the"
                " request, or connect fewer tools"
            )
        self._lines.append(record)

    def events(self) -> tuple[Event, ...]:
        return read_lines(self.folder / EVENTS, from_json).records

    def close(self) -> None:
        self._lines.close()
        os.close(self._lock)  # releases it


@dataclasses.dataclass(frozen=True)
class Sessions:
    """All sessions below a folder."""

    folder: Path

    def create(self) -> SessionLog:
        id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"
        return SessionLog(self.folder / id)

    def open(self, id: str) -> SessionLog:
        """Opens a session to continue it. ValueError if there is none, or if it is in use."""
        return SessionLog(self._existing(id))

    def events(self, id: str) -> tuple[Event, ...]:
        """Returns the events of a session. ValueError if there is no such session, or its log is
        damaged."""
        return read_lines(self._existing(id) / EVENTS, from_json).records

    def fork(self, id: str) -> SessionLog:
        """Creates a session that begins with all that happened in this one."""
        events, log = self.events(id), self.create()
        for event in events:
            if isinstance(event, Started):
                event = dataclasses.replace(event, session=log.id)
            log.append(event)
        return log

    def list(self) -> list[SessionInfo]:
        """Returns the sessions, the newest first."""
        found = []
        for folder in self.folder.glob("*"):
            if ID.fullmatch(folder.name) and (folder / EVENTS).exists():
                # One that was damaged must not hide the others; who opens it is told.
                with contextlib.suppress(ValueError):
                    found.append(_info(folder))
        # Others ended before they began, for a fault that their user was told of.
        found = [info for info in found if info.cwd]
        return sorted(found, key=lambda info: (info.changed, info.id), reverse=True)

    def newest(self) -> str:
        sessions = self.list()
        if not sessions:
            raise ValueError(f"there is no session in {self.folder} to resume; start one")
        return sessions[0].id

    def _existing(self, id: str) -> Path:
        folder = self.folder / id
        # The form is checked first: an id is a path otherwise.
        if not ID.fullmatch(id) or not (folder / EVENTS).exists():
            raise ValueError(f"there is no session {id!r:.80}; `ale-agent sessions` lists them")
        return folder


def _info(folder: Path) -> SessionInfo:
    events = read_lines(folder / EVENTS, from_json).records
    changed = (folder / EVENTS).stat().st_mtime
    return SessionInfo(folder.name, cwd_of(events), _first_request(events), changed)


def cwd_of(events: tuple[Event, ...]) -> str:
    """Returns the directory in which the session began; "" if it has not begun."""
    return next((each.cwd for each in events if isinstance(each, Started)), "")


def _first_request(events: tuple[Event, ...]) -> str:
    requests: Iterator[str] = (each.text for each in events if isinstance(each, Asked))
    return " ".join(next(requests, "").split())[:80]

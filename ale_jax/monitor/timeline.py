"""timeline.json: what learner, engines and episodes did when, for ui.perfetto.dev.

The format is the JSON array of Chrome's trace events, with one complete event ("X") per line. It
allows that the closing bracket is missing. So the file can be opened while a run goes on and after
it was killed, and a run that is resumed appends to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ale_jax.files import Lines, cut_incomplete_line, decode_object, read_lines
from ale_jax.monitor.events import MAX_TIME

TIMELINE_FILE, EARLIER_FILE = "timeline.json", "timeline.earlier.json"
MAX_BYTES = 16 << 20  # of a file, which then becomes EARLIER_FILE
OPENING, END = b"[\n", b",\n"

# Processes of the trace, and what their lanes do. Of the learner, BEGUN is the moment from which a
# process of the run records.
LEARNER, ENGINES, EPISODES = "learner", "engines", "episodes"
REWARD_WORKERS = "reward workers"
PROCESSES = (LEARNER, ENGINES, EPISODES, REWARD_WORKERS)
_PROCESS_OF = dict(enumerate(PROCESSES, 1))
_KINDS = {
    LEARNER: "learner",
    ENGINES: "engine",
    EPISODES: "place",
    REWARD_WORKERS: "reward worker",
}
BEGUN, START, WAITING, EVALUATION = "begun", "start", "waiting", "evaluation"
UPDATE, SAVE, PUBLISH, REPORT = "update", "save", "publish", "report"
SAMPLING, LENT = "sampling", "lent"
BOOT, REPLY, ENVIRONMENT, VERDICT = "sandbox start", "reply", "environment", "verdict"

MAX_LANES = 100_000  # of a process
PAUSE_S = 0.001  # dispatches that are no further apart are one span,
JOINED_S = 1.0  # up to this length: so much is lost if the run is killed
MICRO = 1e6
NOTHING: Mapping[str, str | int] = {}


class Lane(NamedTuple):
    """A row of the timeline. number: from 0, among the rows of `process`."""

    process: str
    number: int = 0

    @property
    def title(self) -> str:
        """What the row is called."""
        kind = _KINDS[self.process]
        return kind if self.process == LEARNER else f"{kind} {self.number}"


class Span(NamedTuple):
    """Something that a lane did. start, end: in seconds, of `time.monotonic` while they are
    recorded and since the epoch when they are read. told: is shown beside the name."""

    lane: Lane
    name: str
    start: float
    end: float
    told: Mapping[str, str | int] = NOTHING


class Work(NamedTuple):
    """A time in which an engine was busy, in seconds of `time.monotonic`."""

    start: float
    end: float


def joined(first: Work, second: Work) -> Work | None:
    """Returns the time of both; None if they are apart, or so long that they are two spans.

    >>> joined(Work(1.0, 1.5), Work(1.5, 1.75)), joined(Work(1.0, 1.5), Work(1.625, 1.75))
    (Work(start=1.0, end=1.75), None)
    """
    near = second.start - first.end <= PAUSE_S and second.end - first.start <= JOINED_S
    return Work(first.start, second.end) if near else None


class Timeline:
    """Appends spans to the timeline of a run; may be used by several threads.

    Nothing is kept in memory but the newest span of each engine.
    """

    def __init__(self, workdir: Path, is_ours: Callable[[], bool] = lambda: True):
        """workdir: of the run. is_ours: whether this process may still write there."""
        self._lock, self._is_ours = threading.Lock(), is_ours
        self._failure: OSError | None = None
        self._origin = time.time() - time.monotonic()
        self._lap_start = now = time.monotonic()
        self._sampling: dict[int, Span] = {}
        self._named: set[Lane] = set()
        self._path = Path(workdir) / TIMELINE_FILE
        cut_incomplete_line(self._path)
        self._file = self._open()
        self.write([Span(Lane(LEARNER), BEGUN, now, now)])

    def __enter__(self) -> Timeline:
        return self

    def __exit__(self, *exc: object) -> None:
        self.write(list(self._sampling.values()))
        # A failure has been told, or will be by the run's next record.
        with self._lock, contextlib.suppress(OSError):
            self._file.close()

    def lap(self, name: str) -> None:
        """Records what the learner's thread, which calls this, did since the last call. OSError if
        the file could not be written, whichever thread found that."""
        start, self._lap_start = self._lap_start, time.monotonic()
        self.write([Span(Lane(LEARNER), name, start, self._lap_start)])
        if self._failure:
            raise self._failure

    def sampled(
        self, engine: int, start: float, end: float, told: Mapping[str, str | int] = NOTHING
    ) -> None:
        """Records that an engine was busy. One thread calls this for each engine."""
        span = Span(Lane(ENGINES, engine), SAMPLING, start, end, told)
        if held := self._sampling.get(engine):
            if both := joined(Work(held.start, held.end), Work(start, end)):
                span = span._replace(start=both.start)
            else:
                self.write([held])
        self._sampling[engine] = span

    def lent(self, engine: int, start: float, end: float) -> None:
        """Records that the devices of an engine, which rested, were the learner's."""
        self.write([Span(Lane(ENGINES, engine), LENT, start, end)])

    def write(self, spans: Sequence[Span]) -> None:
        """Appends spans, of which one that encloses others comes first. Where that fails, the
        engine and the workers go on until the run is ended (`lap`)."""
        with self._lock:
            # Another process of the run may still tell what its engines did.
            if self._failure or self._file.closed or not self._is_ours():
                return
            try:
                if self._file.tell() >= MAX_BYTES:
                    self._file.close()
                    os.replace(self._path, self._path.with_name(EARLIER_FILE))
                    self._file = self._open()
                self._append(self._file, [event for span in spans for event in self._events(span)])
            except OSError as error:
                self._failure = error

    def _open(self) -> BinaryIO:
        file = self._path.open("ab")
        if not file.tell():
            file.write(OPENING)
        self._named.clear()
        for place, process in enumerate(PROCESSES):
            name = _label(Lane(process), "process_name", name=process)
            order = _label(Lane(process), "process_sort_index", sort_index=place)
            self._append(file, [name, order])
        return file

    def _append(self, file: BinaryIO, events: Sequence[Mapping[str, Any]]) -> None:
        file.write(b"".join(json.dumps(event).encode() + END for event in events))
        file.flush()  # to the system, where it survives the death of this process

    def _events(self, span: Span) -> list[dict[str, Any]]:
        events = []
        if span.lane not in self._named:
            self._named.add(span.lane)
            events.append(_label(span.lane, "thread_name", name=span.lane.title))
        # Both ends are rounded, so that spans which touch or nest do so in the file, too.
        start, end = (round(MICRO * (self._origin + each)) for each in (span.start, span.end))
        event = {"ph": "X", "name": span.name, **_place(span.lane), "ts": start, "dur": end - start}
        return [*events, event | ({"args": dict(span.told)} if span.told else {})]


def read_timeline(path: Path) -> Lines[Span]:
    """Returns the spans of a timeline, in the order written; see `files.read_lines` for what is
    tolerated."""
    lines = read_lines(Path(path), _span, 2 * MAX_BYTES, _decode)
    return Lines(tuple(span for span in lines.records if span), lines.truncated_line)


def _decode(line: bytes) -> dict[str, Any]:
    return {} if line == OPENING else decode_object(line.removesuffix(END))


def _span(event: Mapping[str, Any]) -> Span | None:
    """None for lines that are no span."""
    if not event or event["ph"] != "X":
        return None
    name, process = str(event["name"]), _PROCESS_OF[int(event["pid"])]
    start, seconds = int(event["ts"]) / MICRO, int(event["dur"]) / MICRO
    if not (0 <= start < MAX_TIME and 0 <= seconds < MAX_TIME):
        raise ValueError(f"ts {event['ts']} or dur {event['dur']} is out of range")
    return Span(Lane(process, int(event["tid"]) % MAX_LANES), name, start, start + seconds)


def _place(lane: Lane) -> dict[str, int]:
    """Each lane has a number that no other process has."""
    pid = 1 + PROCESSES.index(lane.process)
    return {"pid": pid, "tid": pid * MAX_LANES + lane.number}


def _label(lane: Lane, what: str, **value: str | int) -> dict[str, Any]:
    """Returns the event that tells how a lane or its process is shown."""
    return {"ph": "M", "name": what, **_place(lane), "args": value}

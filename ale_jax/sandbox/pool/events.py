"""What a pool records about itself: its latest events, numbered, its default clock and log, and how
busy the machine is."""

from __future__ import annotations

import collections
import itertools
import logging
import time
from collections.abc import Callable
from pathlib import Path

from ale_jax.sandbox.pool.api import Event, Events, Record

MAX_EVENTS = 4096
MAX_CHARS = 500
FROM_AGENTS = "egress_"  # how the kinds begin that an agent causes as often as it likes

Value = str | int | float | bool


class EventRing:
    """The last MAX_EVENTS, for one event loop. It passes each on to another `Record`.

    What agents cause has a ring of its own: it makes room for its like only.
    """

    def __init__(self, clock: Callable[[], float], record: Record):
        self._clock, self._pass_on = clock, record
        # Numbers go on where a pool that ran here before has left off, so that one number tells
        # its followers what is new. No pool sees a thousand events per second all its life.
        self._last = int(clock() * 1000)
        self._forgotten = 0
        self._rings = [collections.deque[Event](), collections.deque[Event]()]

    def record(
        self, kind: str, detail: str, at: float | None = None, **fields: Value | None
    ) -> None:
        """A `Record`. at: seconds since the epoch, if it was not just now."""
        self._last += 1
        at = self._clock() if at is None else at
        fields = {name: value for name, value in fields.items() if value is not None}
        self._pass_on(kind, detail, **fields)
        kept = {name: _clipped(value) for name, value in fields.items()}
        sandbox = kept.pop("sandbox", "")
        ring = self._rings[kind.startswith(FROM_AGENTS)]
        ring.append(Event(self._last, at, kind, _clipped(detail), sandbox, kept))
        if len(ring) > MAX_EVENTS:
            self._forgotten = max(self._forgotten, ring.popleft().number)

    def after(self, number: int) -> Events:
        """As `SandboxPool.events_after`. A number that is still to come is of a clock that went
        wrong: everything is new then."""
        if number > self._last:
            number = 0
        new = [
            event
            for ring in self._rings
            for event in itertools.takewhile(lambda event: event.number > number, reversed(ring))
        ]
        new.sort(key=lambda event: event.number)
        return Events(tuple(new), self._last, self._forgotten)


def _clipped(value: Value) -> Value:
    return value[:MAX_CHARS] if isinstance(value, str) else value


log = logging.getLogger(__name__)


def log_event(kind: str, detail: str, **fields: str | int | float | bool) -> None:
    """A `Record` in the log."""
    log.info("%s: %s %s", kind, detail, fields)


def steady_clock() -> Callable[[], float]:
    """Seconds since the epoch, as of now, by a clock that nobody sets: limits are held by it."""
    offset = time.time() - time.monotonic()
    return lambda: time.monotonic() + offset


STAT, MEMINFO = Path("/proc/stat"), Path("/proc/meminfo")


class NodeLoad:
    """cpu_percent: 0 to 100 of all cores together, since it was last asked."""

    def __init__(self):
        self._busy, self._total = _cpu_times(STAT.read_text())
        self._percent = 0.0

    def cpu_percent(self) -> float:
        busy, total = _cpu_times(STAT.read_text())
        if total > self._total:
            self._percent = 100.0 * (busy - self._busy) / (total - self._total)
            self._busy, self._total = busy, total
        return self._percent

    def memory(self) -> tuple[int, int]:
        """Bytes in use that the kernel could not free, and bytes that there are."""
        return _memory(MEMINFO.read_text())


def _cpu_times(stat: str) -> tuple[int, int]:
    """Busy and total clock ticks (proc(5)); waiting for a disk is idleness, too."""
    user, nice, system, idle, iowait, *rest = map(int, stat.split("\n", 1)[0].split()[1:9])
    busy = user + nice + system + sum(rest)
    return busy, busy + idle + iowait


def _memory(meminfo: str) -> tuple[int, int]:
    fields = dict(line.split(":", 1) for line in meminfo.splitlines())
    total, free = (int(fields[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    return total - free, total

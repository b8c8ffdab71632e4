"""What a pool records about itself: its latest events, numbered; its default clock and log; and the
load of the machine."""

from __future__ import annotations

import collections
import itertools
import logging
import time
from collections.abc import Callable
from pathlib import Path

from ale_jax.sandbox.pool.api import Events, PoolEvent, Record

MAX_EVENTS = 4096
MAX_CHARS = 500
FROM_AGENTS = "egress_"  # prefix of the kinds that an agent can cause as often as it likes

Value = str | int | float | bool


class EventRing:
    """Keeps the last MAX_EVENTS events and passes each on to another `Record`. For one event loop.

    Events caused by agents have a ring of their own, so that they cannot displace other events.
    """

    def __init__(self, clock: Callable[[], float], record: Record):
        self._clock, self._pass_on = clock, record
        # Numbers start at the time in milliseconds, so that they continue above those of an earlier
        # pool and a follower can ask for what is new by number. That works because no pool records
        # a thousand events per second throughout its life.
        self._last = int(clock() * 1000)
        self._forgotten = 0
        self._rings = [collections.deque[PoolEvent](), collections.deque[PoolEvent]()]

    def record(
        self, kind: str, detail: str, at: float | None = None, **fields: Value | None
    ) -> None:
        """A `Record`. at: seconds since the epoch; None: now."""
        self._last += 1
        at = self._clock() if at is None else at
        known = {name: value for name, value in fields.items() if value is not None}
        self._pass_on(kind, detail, **known)
        kept = {name: _clipped(value) for name, value in known.items()}
        sandbox = str(kept.pop("sandbox", ""))
        ring = self._rings[kind.startswith(FROM_AGENTS)]
        ring.append(PoolEvent(self._last, at, kind, str(_clipped(detail)), sandbox, kept))
        if len(ring) > MAX_EVENTS:
            self._forgotten = max(self._forgotten, ring.popleft().number)

    def after(self, number: int) -> Events:
        """See `SandboxPool.events_after`. A number above the latest one must come from a clock that
        was wrong; all events count as new then."""
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
    """A `Record` that writes to the log."""
    log.info("%s: %s %s", kind, detail, fields)


def steady_clock() -> Callable[[], float]:
    """Returns a clock in seconds since the epoch that later changes of the system time do not
    affect. The pool measures its time limits with it."""
    offset = time.time() - time.monotonic()
    return lambda: time.monotonic() + offset


STAT, MEMINFO = Path("/proc/stat"), Path("/proc/meminfo")


class NodeLoad:
    """CPU and memory load of the machine. cpu_percent: 0 to 100 over all cores, since it was last
    read."""

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
        """Bytes in use that the kernel could not free, and total bytes."""
        return _memory(MEMINFO.read_text())


def _cpu_times(stat: str) -> tuple[int, int]:
    """Busy and total clock ticks (proc(5)). Waiting for a disk counts as idle."""
    user, nice, system, idle, iowait, *rest = map(int, stat.split("\n", 1)[0].split()[1:9])
    busy = user + nice + system + sum(rest)
    return busy, busy + idle + iowait


def _memory(meminfo: str) -> tuple[int, int]:
    fields = dict(line.split(":", 1) for line in meminfo.splitlines())
    total, free = (int(fields[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    return total - free, total

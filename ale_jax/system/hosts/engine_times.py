"""When the engines of a follower were busy, on the first process's timeline.

The times are in frames that the follower sends anyway: its answers, and what it tells of agents.
Its clock is compared in the answers, as NTP does: it was read between the question and the answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ale_jax.monitor.timeline import Work, joined

# By which clocks may part: a quartz is off by less than 100 millionths.
DRIFT = 1e-4
MICRO = 1e6

# Is given the number of an engine of the follower, start and end on this process's clock, and what
# is told beside it.
Observer = Callable[[int, float, float, Mapping[str, int]], None]


class EngineTimes:
    """Holds when the engines of this process were busy, until that is sent. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._over: list[tuple[int, float, float]] = []
        self._newest: dict[int, Work] = {}

    def sampled(self, engine: int, start: float, end: float) -> None:
        work = Work(start, end)
        with self._lock:
            if held := self._newest.get(engine):
                if both := joined(held, work):
                    work = both
                else:
                    self._over.append((engine, *held))
            self._newest[engine] = work

    def news(self) -> dict[str, Any]:
        """Returns fields of a frame: the time, and what was not sent yet."""
        with self._lock:
            over = self._over + [(engine, *work) for engine, work in self._newest.items()]
            self._over, self._newest = [], {}
        return {"clock": time.monotonic(), "engines": over}


class PeerClock:
    """Another process's `time.monotonic` in that of this one.

    An answer that took 0.2 s, and says 50 s, was sent when it was 10.1 s here, give or take 0.1:

        >>> clock = PeerClock()
        >>> clock.heard(asked=10.0, told=50.0, heard=10.2)
        >>> round(clock.here(51.0), 3), round(clock.error(10.2), 3), round(clock.error(20.2), 3)
        (11.1, 0.1, 0.101)
    """

    def __init__(self) -> None:
        self._ahead, self._error, self._at = 0.0, float("inf"), 0.0

    def heard(self, asked: float, told: float, heard: float) -> None:
        """Takes note of an answer, if it says more than the ones before."""
        error = (heard - asked) * (0.5 + DRIFT)
        if error <= self.error(heard):
            self._ahead, self._error, self._at = told - (asked + heard) / 2, error, heard

    def here(self, told: float) -> float:
        return told - self._ahead

    def error(self, now: float) -> float:
        """Returns by how much `here` may be off, in seconds."""
        return self._error + DRIFT * (now - self._at)


class TimesFromPeer:
    """Passes on what a follower tells. All methods are called by the thread that listens to it."""

    def __init__(self, observer: Observer):
        self._observer, self._clock = observer, PeerClock()

    def receive(self, header: Mapping[str, Any], asked: float | None) -> None:
        """asked: when the question was sent that this frame answers; None if it answers none."""
        now = time.monotonic()
        if asked is not None:
            self._clock.heard(asked, header["clock"], now)
        told = {"clock_error_us": round(MICRO * self._clock.error(now))}
        for engine, start, end in header["engines"]:
            self._observer(engine, self._clock.here(start), self._clock.here(end), told)

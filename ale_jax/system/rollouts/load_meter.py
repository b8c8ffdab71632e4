"""How busy places and reward workers are, and how much waits for them, as means over time."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping

from ale_jax.system.rollouts.pool import Load


class LoadMeter:
    """Each load that is noted holds until the next one. May be used by several threads.

    >>> meter = LoadMeter()
    >>> meter.note(0.0, {"places": Load(size=4, busy=1, waiting=0)})
    >>> meter.note(1.0, {"places": Load(size=4, busy=4, waiting=6)})
    >>> meter.note(3.0, {"places": Load(size=4, busy=4, waiting=6)})
    >>> meter.take()
    {'time/places_busy': 0.75, 'time/places_queue': 4.0}
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since, self._loads = 0.0, dict[str, Load]()
        self._sums: defaultdict[tuple[str, str], float] = defaultdict(float)  # over time
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def note(self, now: float, loads: Mapping[str, Load]) -> None:
        """Takes note of the loads by their role. now: in seconds, on any clock."""
        with self._lock:
            for role, load in self._loads.items():
                self._seconds[role] += now - self._since
                for name, value in load._asdict().items():
                    self._sums[role, name] += value * (now - self._since)
            self._since, self._loads = now, {name: x for name, x in loads.items() if x.size}

    def take(self) -> dict[str, float]:
        """Returns, for each role since the last call: busy, the share of its time in which it
        worked; queue, the mean number of attempts that waited."""
        with self._lock:
            found = {}
            for role, seconds in self._seconds.items():
                if seconds:
                    found[f"time/{role}_busy"] = self._sums[role, "busy"] / self._sums[role, "size"]
                    found[f"time/{role}_queue"] = self._sums[role, "waiting"] / seconds
            self._sums.clear()
            self._seconds.clear()
            return found

"""How long a phase will still take, once that can be known."""

from __future__ import annotations

MIN_INTERVALS = 3


class Pace:
    """How fast a phase goes on, by the moments at which it had made how many steps.

    Only intervals between updates in which nothing was compiled count, and not the first one, in
    which engines and sandboxes start. From MIN_INTERVALS of them on, the time left is known. It is
    their mean and not their median: the episodes of an evaluation finish in bursts, between which
    the median is 0.
    """

    def __init__(self, done: int, now: float):
        self._done, self._since = done, now
        self._is_clean = False  # the first interval is left out
        self._intervals, self._steps, self._seconds = 0, 0, 0.0

    def compiled(self) -> None:
        """Something is or was compiled in this interval."""
        self._is_clean = False

    def update(self, done: int, now: float) -> None:
        if done <= self._done:
            return
        if self._is_clean:
            self._intervals += 1
            self._steps += done - self._done
            self._seconds += now - self._since
        self._done, self._since, self._is_clean = done, now, True

    def seconds_left(self, total: int) -> float | None:
        """None where it cannot be known yet."""
        if self._intervals < MIN_INTERVALS:
            return None
        return self._seconds / self._steps * max(0, total - self._done)

"""Whether a runner that does not answer could have answered.

A runner that waits for a CPU is alive, however long it waits: its sandbox may have a small share of
a core and hundreds of busy processes, or the host may be overloaded. A runner that is stopped or
frozen, or that has had its time on a CPU and still has not answered, is as good as dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

STUCK_S = 5.0  # on a CPU; an answer takes milliseconds, killing a fork bomb up to a second or two
LOOK_S = 0.25


@dataclasses.dataclass(frozen=True)
class Vitals:
    """What the kernel says about a runner.

    runnable: it runs or waits for a CPU, also while its control group has used up its quota.
    stopped: by a signal. cpu_seconds: time on a CPU since its start.
    """

    runnable: bool
    stopped: bool
    cpu_seconds: float


See = Callable[[], Vitals | None]


def read_vitals(pid: int) -> Vitals | None:
    """The vitals of a process (proc(5), stat and schedstat); None if it has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        on_cpu = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Vitals(state == "R", state in "Tt", on_cpu / 1e9)


class Silence(enum.Enum):
    """Why a runner has not answered since the last look."""

    WAITING = enum.auto()  # it waits for a CPU
    STOPPED = enum.auto()  # by a signal
    BLOCKED = enum.auto()  # frozen, asleep, stuck, or not visible from here


class Watch:
    """Judges one silence, from its first look on. see: returns None if the runner is not visible
    from this host."""

    def __init__(self, see: See, clock: Callable[[], float] = time.monotonic):
        self._see, self._clock = see, clock
        self._first: Vitals | None = None
        self._last: Vitals | None = None
        self._at = clock()

    def look(self) -> Silence:
        now, before, at = self._see(), self._last, self._clock()
        seconds, self._last, self._at = at - self._at, now, at
        if now is None:
            return Silence.BLOCKED
        if now.stopped:
            return Silence.STOPPED
        self._first = self._first or now
        ran = now.cpu_seconds - before.cpu_seconds if before else 0.0
        is_stuck = now.cpu_seconds - self._first.cpu_seconds > STUCK_S
        had_its_chance = is_stuck or (before is not None and ran > seconds / 2)
        return Silence.WAITING if now.runnable and not had_its_chance else Silence.BLOCKED


@contextlib.asynccontextmanager
async def time_to_answer(seconds: float, see: See) -> AsyncIterator[None]:
    """`asyncio.timeout`, except that the time in which the runner waits for a CPU does not count
    once `seconds` have passed."""
    loop, watch = asyncio.get_running_loop(), Watch(see)

    def check() -> None:
        nonlocal timer
        if watch.look() is Silence.WAITING:
            timer = loop.call_later(LOOK_S, check)
        else:
            limit.reschedule(loop.time())

    async with asyncio.timeout(None) as limit:
        timer = loop.call_later(seconds, check)
        try:
            yield
        finally:
            timer.cancel()


def first_process(pid: int) -> int | None:
    """The process below `pid` that is process 1 of a pid namespace; None if there is none."""
    try:
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for each in map(int, below):
            status = Path(f"/proc/{each}/status").read_text(errors="replace")
            numbers = next(line for line in status.splitlines() if line.startswith("NSpid:"))
            if numbers.split()[-1] == "1":
                return each
            if (found := first_process(each)) is not None:
                return found
    except (FileNotFoundError, ProcessLookupError):  # they have just ended
        pass
    return None

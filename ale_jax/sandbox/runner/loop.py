"""A minimal event loop for coroutines that wait for file descriptors, deadlines and each other.

It replaces asyncio, which would cost more memory and start time than the rest of the runner.
"""

import heapq
import itertools
import select
import time
import types
from collections import deque
from collections.abc import Callable, Coroutine

READ, WRITE = select.POLLIN, select.POLLOUT
BROKEN = select.POLLERR | select.POLLHUP | select.POLLNVAL
MAX_POLL_S = 3600.0  # poll(2) takes at most 2^31 ms
STALE_TIMERS = 256


class Task:
    """A running coroutine.

    turn: number of times it was resumed; a wake-up for an earlier turn is ignored.
    over: set when it has ended or was cancelled.
    """

    def __init__(self, loop: "Loop", coroutine: Coroutine):
        self.coroutine = coroutine
        self.turn = 0
        self.over = Event(loop)


Waiter = tuple[Task, int]


@types.coroutine
def _pause():
    return (yield)


class Loop:
    """Runs tasks, one at a time: `current`. before_wait: called whenever no task is ready."""

    def __init__(self):
        self.before_wait: Callable[[], None] = lambda: None
        self.current: Task | None = None
        self._poller = select.poll()
        self._watched: dict[int, dict[int, Waiter]] = {}
        self._timers: list[tuple[float, int, Waiter]] = []
        self._serial = itertools.count()
        self._ready: deque[tuple[Task, int, bool]] = deque()

    def spawn(self, coroutine: Coroutine) -> Task:
        task = Task(self, coroutine)
        self._ready.append((task, 0, True))
        return task

    def cancel(self, task: Task) -> None:
        """Closes a task at the point where it waits. A task must not cancel itself."""
        task.turn = -1
        task.coroutine.close()
        task.over.set()

    def nudge(self, task: Task) -> None:
        """Ends the task's current wait as if its deadline had passed."""
        if not task.over.is_set:
            self.wake((task, task.turn), False)

    def run(self) -> None:
        while True:
            while self._ready:
                task, turn, value = self._ready.popleft()
                if task.turn == turn:
                    self._resume(task, value)
            self.before_wait()
            if not self._ready:
                self._wait()

    async def ready(self, fd: int, event: int, deadline: float | None = None) -> bool:
        """Waits until `fd` is readable or writable, or broken: True. At the `deadline`: False."""
        watched = self._watched.setdefault(fd, {})
        assert event not in watched, "only one task may wait for each direction of a descriptor"
        watched[event] = self.waiter(deadline)
        self._poller.register(fd, sum(watched))
        try:
            return await _pause()
        finally:
            del watched[event]
            if watched:
                self._poller.register(fd, sum(watched))
            else:
                self._poller.unregister(fd)
                del self._watched[fd]

    async def sleep(self, seconds: float) -> None:
        self.waiter(time.monotonic() + seconds)
        await _pause()

    def waiter(self, deadline: float | None) -> Waiter:
        """A handle of the running task, which `wake` or the deadline resumes."""
        waiter = (self.current, self.current.turn)
        if deadline is not None:
            if len(self._timers) > STALE_TIMERS:
                self._timers = [t for t in self._timers if t[2][0].turn == t[2][1]]
                heapq.heapify(self._timers)
            heapq.heappush(self._timers, (deadline, next(self._serial), waiter))
        return waiter

    def wake(self, waiter: Waiter, value: bool) -> None:
        self._ready.append((*waiter, value))

    def _resume(self, task: Task, value: bool) -> None:
        self.current = task
        task.turn += 1
        try:
            task.coroutine.send(None if task.turn == 1 else value)
        except StopIteration:
            task.turn = -1
            task.over.set()

    def _wait(self) -> None:
        left = MAX_POLL_S
        if self._timers:
            left = min(left, max(0.0, self._timers[0][0] - time.monotonic()))
        for fd, events in self._poller.poll(left * 1000 + 1 if left else 0):
            for event, waiter in self._watched[fd].items():
                if events & (event | BROKEN):
                    self.wake(waiter, True)
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            self.wake(heapq.heappop(self._timers)[2], False)


class Event:
    """A flag that tasks can wait for."""

    def __init__(self, loop: Loop):
        self._loop = loop
        self._waiters: list[Waiter] = []
        self.is_set = False

    def set(self) -> None:
        self.is_set = True
        for waiter in self._waiters:
            self._loop.wake(waiter, True)
        self._waiters.clear()

    def clear(self) -> None:
        self.is_set = False

    async def wait(self, deadline: float | None = None) -> bool:
        """True once it is set, False if the deadline came first."""
        if self.is_set:
            return True
        self._waiters.append(self._loop.waiter(deadline))
        return await _pause()

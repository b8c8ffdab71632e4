"""Workers and conversations that only take time, on a clock that a simulation moves."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Callable
from typing import NamedTuple

from ale_jax.config.engine import Sampling
from ale_jax.gateway.custody.ledger import Activity
from ale_jax.records import Episode, EpisodeKey, Prefix, Trajectory, Turn
from ale_jax.status import Status
from ale_jax.system.rollouts.pool import PoolCounts


class Clock:
    """Seconds since the simulation began; who waits moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Course(NamedTuple):
    """How an attempt goes. seconds: until it ends; infinite for a sandbox that hangs."""

    seconds: float
    status: Status = Status.FINISHED
    reward: float | None = 1.0


@dataclasses.dataclass(eq=False)
class SimulatedAttempt:
    """A `Playing`: it ends at `ends`, or as soon as it is cancelled."""

    pool: SimulatedPool
    key: EpisodeKey
    course: Course
    begun: float
    ends: float
    is_cancelled: bool = False
    where = "simulated"

    def cancel(self) -> None:
        self.is_cancelled = True
        self.ends = self.pool.clock.now
        self.pool.expect(self)

    def give_up(self, reason: str) -> None:
        raise AssertionError(f"an attempt did not end when it was cancelled: {reason}")

    def result(self) -> Episode:
        status = Status.CANCELLED if self.is_cancelled else self.course.status
        reward = None if self.is_cancelled else self.course.reward
        seconds = self.ends - self.begun
        return Episode(self.key, status, reward, 1, 0, seconds=seconds, env_seconds=seconds)


class SimulatedPool:
    """A `WorkerPool`. Waiting for an attempt moves the clock to its end."""

    counts = PoolCounts(0, 0)

    def __init__(self, places: int, course: Callable[[EpisodeKey], Course], clock: Clock):
        """course: of the next attempt at an episode."""
        self.clock, self.free = clock, places
        self.busy_seconds = 0.0  # of all places together
        self._course = course
        self._order = itertools.count()
        self._ends: list[tuple[float, int, SimulatedAttempt]] = []

    def play(
        self, key: EpisodeKey, url: str, conversation: str, prefix: Prefix | None
    ) -> SimulatedAttempt:
        now, course = self.clock.now, self._course(key)
        attempt = SimulatedAttempt(self, key, course, now, now + course.seconds)
        self.free -= 1
        self.expect(attempt)
        return attempt

    def expect(self, attempt: SimulatedAttempt) -> None:
        """Takes note of when the attempt ends; the last time counts."""
        heapq.heappush(self._ends, (attempt.ends, next(self._order), attempt))

    def finished(self, timeout: float) -> list[SimulatedAttempt]:
        until = self.clock.now + timeout
        found: list[SimulatedAttempt] = []
        while self._ends and self._ends[0][0] <= (self.clock.now if found else until):
            ends, _, attempt = heapq.heappop(self._ends)
            if ends == attempt.ends and attempt not in found:
                self.clock.now = max(ends, self.clock.now)
                self.busy_seconds += ends - attempt.begun
                self.free += 1
                found.append(attempt)
        if not found:
            self.clock.now = until
        return found

    def check(self) -> None:
        """Simulated workers do not die together."""

    def waiting_for(self) -> str:
        return ""

    def close(self) -> None:
        """There is nothing to end."""


class SimulatedConversations:
    """`Conversations` whose first token is sampled when they are opened."""

    def __init__(self, clock: Clock, version: Callable[[], int]):
        """version: of the engine's weights."""
        self._clock, self._version = clock, version
        self._opened: dict[str, tuple[float, int]] = {}

    def open(
        self,
        name: str,
        key: EpisodeKey,
        sampling: Sampling,
        prefix_turns: tuple[Turn, ...],
        redraw: int,
    ) -> None:
        self._opened[name] = self._clock.now, self._version()

    def activity(self, name: str) -> Activity:
        seconds = self._clock.now - self._opened[name][0]
        return Activity(asked=True, waits=False, turn_seconds=seconds, total_seconds=seconds)

    def stop(self, name: str) -> None:
        """The attempt is told by its pool."""

    def start_version(self, name: str) -> int | None:
        return self._opened[name][1]

    def close(self, name: str, episode: Episode | None) -> Trajectory | None:
        _, version = self._opened.pop(name)
        return Trajectory(episode, (), version) if episode else None

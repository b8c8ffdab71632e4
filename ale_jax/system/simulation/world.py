"""Workers and conversations that only take time, on a clock that a simulation moves."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

from ale_jax.config.engine import Sampling
from ale_jax.gateway.custody.ledger import Activity
from ale_jax.records import Episode, EpisodeKey, Prefix, Trajectory, Turn
from ale_jax.status import Status
from ale_jax.system.rollouts.pool import AttemptStage, Load, PoolCounts
from ale_jax.system.rollouts.reward_workers import RewardWorkers
from ale_jax.system.simulation.engines import ONE, Engines


class Clock:
    """Seconds since the simulation began; who waits moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Course(NamedTuple):
    """How an attempt goes. seconds: until it ends, if it is alone; infinite for a sandbox that
    hangs. verdict: seconds of one that needs no sandbox, after that. failed_verdicts: how often a
    reward worker fails to make it, in as many seconds each."""

    seconds: float
    status: Status = Status.FINISHED
    reward: float | None = 1.0
    verdict: float = 0.0
    failed_verdicts: int = 0


@dataclasses.dataclass(frozen=True)
class Crowding:
    """How much longer things take because others use the same hardware, as shares of their time
    alone. episodes: of an episode, for each other one of its engine. update: of an episode, while
    the learner works. learner: of an update, for each episode in progress.

    Of three episodes while the learner works, each is 1 + 2 * 0.1 + 0.5 = 1.7 times slower, and the
    update 1 + 3 * 0.2 = 1.6 times:

        >>> crowding = Crowding(episodes=0.1, update=0.5, learner=0.2)
        >>> round(crowding.of_episodes(3, in_update=True), 3), round(crowding.of_update(3), 3)
        (1.7, 1.6)
    """

    episodes: float = 0.0
    update: float = 0.0
    learner: float = 0.0
    engines: Engines = ONE

    def of_episodes(self, number: int, in_update: bool, crowd: float = 1.0) -> float:
        """Returns how many times slower `number` episodes in progress are than one alone. crowd: as
        of `Sides`."""
        beside = self.engines.beside(crowd * number)
        slower = 1.0 + self.episodes * beside + self.update * in_update
        return slower * self.engines.slower(number, crowd)

    def of_update(self, number: int) -> float:
        """Returns how many times slower an update is, with `number` episodes in progress."""
        return 1.0 + self.learner * number


ALONE = Crowding()


@dataclasses.dataclass(eq=False)
class SimulatedAttempt:
    """A `Playing`: it ends when the pool's progress is at `ends`, or as soon as it is cancelled.
    begun: in seconds. failed_verdicts: so far."""

    pool: SimulatedPool
    key: EpisodeKey
    course: Course
    begun: float
    ends: float
    is_cancelled: bool = False
    failed_verdicts: int = 0
    stage: AttemptStage = AttemptStage.PLAYED
    where = "simulated"

    def cancel(self) -> None:
        self.is_cancelled = True
        self.pool.cancel(self)

    def judge_again(self) -> None:
        self.pool.queue(self)

    def give_up(self, reason: str) -> None:
        raise AssertionError(f"an attempt did not end when it was cancelled: {reason}")

    def result(self) -> Episode:
        status, reward = self.course.status, self.course.reward
        if self.stage is AttemptStage.UNJUDGED:
            status, reward = Status.VERIFIER_ERROR, None
        if self.is_cancelled:
            status, reward = Status.CANCELLED, None
        seconds = self.pool.clock.now - self.begun
        return Episode(self.key, status, reward, 1, 0, seconds=seconds, env_seconds=seconds)


class SimulatedPool:
    """A `WorkerPool`. Waiting for an attempt moves the clock to its end.

    progress: the seconds that an attempt alone would have come forward since the simulation began.
    All that have a place come forward equally fast, and verdicts as the clock does. in_update:
    whether the learner works. crowd: as of `Sides`.
    """

    counts = PoolCounts(0, 0)

    def __init__(
        self,
        places: int,
        course: Callable[[EpisodeKey], Course],
        clock: Clock,
        crowding: Crowding = ALONE,
        reward_workers: int = 0,
    ):
        """course: of the next attempt at an episode. reward_workers: 0 if verdicts are made in the
        places."""
        self._judges = RewardWorkers[SimulatedAttempt](reward_workers)
        self._verdicts: list[tuple[float, int, SimulatedAttempt]] = []  # by their end
        self.clock, self.free = clock, places
        self.playing, self.in_update, self.progress, self.crowd = 0, False, 0.0, 1.0
        self._course, self._crowding = course, crowding
        self._order = itertools.count()
        self._ends: list[tuple[float, int, SimulatedAttempt]] = []

    def play(
        self, key: EpisodeKey, url: str, conversation: str, prefix: Prefix | None
    ) -> SimulatedAttempt:
        course = self._course(key)
        in_place = 0.0 if self.judges.size else course.verdict
        ends = self.progress + course.seconds + in_place
        attempt = SimulatedAttempt(self, key, course, self.clock.now, ends)
        self.free -= 1
        self.playing += 1
        self._expect(attempt)
        return attempt

    @property
    def judges(self) -> Load:
        return self._judges.load

    def cancel(self, attempt: SimulatedAttempt) -> None:
        """Ends an attempt at once, but a verdict that is being made goes on."""
        if attempt.stage is AttemptStage.UNJUDGED:
            attempt.stage = AttemptStage.OVER
        elif attempt.stage is not AttemptStage.JUDGED:
            self._judges.leave(attempt)
            attempt.ends = self.progress
            self._expect(attempt)

    def _expect(self, attempt: SimulatedAttempt) -> None:
        """Takes note of when the attempt ends; the last time counts."""
        heapq.heappush(self._ends, (attempt.ends, next(self._order), attempt))

    def moved(self, timeout: float) -> list[SimulatedAttempt]:
        moved = dict.fromkeys(self._begin_verdicts())  # of those that are judged again
        self._pass(0.0 if moved else timeout)
        while self._ends and self._ends[0][0] <= self.progress:
            ends, _, attempt = heapq.heappop(self._ends)
            if ends == attempt.ends and attempt.stage in (AttemptStage.PLAYED, AttemptStage.QUEUED):
                self._end(attempt)
                moved[attempt] = None
        while self._verdicts and self._verdicts[0][0] <= self.clock.now:
            *_, attempt = heapq.heappop(self._verdicts)
            self._end_verdict(attempt)
            moved[attempt] = None
        return list(moved | dict.fromkeys(self._begin_verdicts()))

    def _begin_verdicts(self) -> list[SimulatedAttempt]:
        begun = list(self._judges.begin())
        for attempt in begun:
            attempt.stage = AttemptStage.JUDGED
            until = self.clock.now + attempt.course.verdict
            heapq.heappush(self._verdicts, (until, next(self._order), attempt))
        return begun

    def _end_verdict(self, attempt: SimulatedAttempt) -> None:
        self._judges.leave(attempt)
        attempt.stage = AttemptStage.OVER
        if attempt.failed_verdicts < attempt.course.failed_verdicts and not attempt.is_cancelled:
            attempt.failed_verdicts += 1
            attempt.stage = AttemptStage.UNJUDGED

    def _end(self, attempt: SimulatedAttempt) -> None:
        """Ends the interaction of an attempt, or one that is cancelled while it waits."""
        if attempt.stage is AttemptStage.PLAYED:
            self.free += 1
            self.playing -= 1
        attempt.stage = AttemptStage.OVER
        if self.judges.size and attempt.course.verdict and not attempt.is_cancelled:
            self.queue(attempt)

    def queue(self, attempt: SimulatedAttempt) -> None:
        """Lets an attempt wait for a reward worker."""
        attempt.stage, attempt.ends = AttemptStage.QUEUED, math.inf
        self._judges.put(attempt)

    def _pass(self, timeout: float) -> None:
        """Lets time pass until the next attempt or verdict ends, or for `timeout` seconds."""
        slower = self._crowding.of_episodes(self.playing, self.in_update, self.crowd)
        ends = self._ends[0][0] if self._ends else math.inf
        judged = self._verdicts[0][0] if self._verdicts else math.inf
        until_end, until_verdict = (ends - self.progress) * slower, judged - self.clock.now
        passes = max(min(until_end, until_verdict, timeout), 0.0)
        # What comes next is reached exactly, whatever rounding leaves.
        self.progress = (
            max(ends, self.progress) if passes >= until_end else self.progress + passes / slower
        )
        self.clock.now = judged if passes == until_verdict else self.clock.now + passes

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

    def replies(self, name: str) -> tuple[tuple[float, float], ...]:
        """Returns nothing: replies take no time of their own."""
        return ()

    def start_version(self, name: str) -> int | None:
        return self._opened[name][1]

    def close(self, name: str, episode: Episode | None) -> Trajectory | None:
        _, version = self._opened.pop(name)
        return Trajectory(episode, (), version) if episode else None

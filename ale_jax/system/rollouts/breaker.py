"""When attempts at episodes may begin: after a back-off, and not while the system fails all."""

from __future__ import annotations

import bisect
import dataclasses
import heapq
import itertools
import random
import time
from collections.abc import Callable, Collection
from typing import Generic, NamedTuple, TypeVar

from ale_jax.config.engine import Sampling
from ale_jax.errors import RolloutsFailed
from ale_jax.monitor.events import Recorder
from ale_jax.monitor.progress import duration
from ale_jax.records import TRAIN, RolloutRequest, Task
from ale_jax.status import Status

T = TypeVar("T")

# Faults that other tasks would meet, too. A world's own error is not among them: pausing would not
# mend it, and the others can go on.
SYSTEM_FAULTS = (
    Status.SANDBOX_START_FAILED,
    Status.SANDBOX_LOST,
    Status.MODEL_ERROR,
    Status.AGENT_FAILED,
    Status.VERIFIER_ERROR,
    Status.ACTOR_LOST,
    Status.DEADLINE,
)
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.25, 30.0


class Job(NamedTuple):
    """An episode that is played until it has a result. rejected: how its attempts so far ended."""

    request: RolloutRequest
    sampling: Sampling
    rejected: tuple[Status, ...] = ()

    @property
    def attempt(self) -> int:
        """The number of its next attempt, from 1."""
        return len(self.rejected) + 1

    def is_of(self, groups: Collection[int]) -> bool:
        """Returns whether it is an episode of one of these training groups."""
        return self.request.key.phase == TRAIN and self.request.key.group in groups


def backoff(failures: int, chance: random.Random) -> float:
    """Returns the seconds before the attempt that follows `failures` failures: doubled each time up
    to a cap, and shortened by chance, so that attempts that failed together do not come back
    together."""
    return min(FIRST_BACKOFF_S * 2 ** (failures - 1), MAX_BACKOFF_S) * chance.uniform(0.5, 1.0)


@dataclasses.dataclass(frozen=True)
class Outside:
    """What decisions take from outside, and a simulation replaces: time, in seconds, and chance."""

    clock: Callable[[], float] = time.monotonic
    chance: random.Random = dataclasses.field(default_factory=random.Random)


REAL = Outside()


class RetryQueue(Generic[T]):
    """What waits to be tried again; what may begin first comes first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._heap: list[tuple[float, int, T]] = []
        self._count = itertools.count()  # those of the same moment in the order of their arrival

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, waiting: T, delay: float) -> None:
        heapq.heappush(self._heap, (self._clock() + delay, next(self._count), waiting))

    def next_ready(self) -> T | None:
        """Takes out one whose delay is over; None if there is none."""
        if self._heap and self._heap[0][0] <= self._clock():
            return heapq.heappop(self._heap)[-1]
        return None

    def discard(self, is_unwanted: Callable[[T], bool]) -> bool:
        """Forgets what is not wanted any more; returns whether anything was not."""
        before = len(self._heap)
        self._heap = [entry for entry in self._heap if not is_unwanted(entry[-1])]
        heapq.heapify(self._heap)
        return len(self._heap) < before


class Breaker:
    """Pauses all attempts while the system fails them, instead of letting their work fail.

    It opens when at least half of the last WINDOW attempts, of more than one task, were failed by
    the system. A single task that breaks its sandbox therefore cannot stop the others. The last
    attempts are those whose last sign of life is the newest: a few sandboxes that hang miss their
    deadlines when all others have ended long ago, and say nothing of the present. While it is open,
    one attempt at a time is tried, after a pause that doubles with each failed trial. The first
    attempt that the system does not fail closes it.
    """

    WINDOW, MIN_FAILURES, MIN_TASKS = 8, 4, 2
    FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 30.0

    def __init__(
        self,
        outage_seconds: float,
        record: Recorder,
        clock: Callable[[], float] = time.monotonic,
    ):
        """record: called when the breaker opens and when it closes."""
        self._outage_seconds, self._record, self._clock = outage_seconds, record, clock
        self._recent: list[tuple[float, Task, bool]] = []  # last sign, task, failed
        self._open_since: float | None = None
        self._pause, self._trial_at = self.FIRST_PAUSE_S, 0.0
        self._in_trial = False
        self._last_failure = ""

    @property
    def is_open(self) -> bool:
        return self._open_since is not None

    @property
    def may_begin(self) -> bool:
        """Whether an attempt may begin now; while the breaker is open, that attempt is a trial."""
        if not self.is_open:
            return True
        return not self._in_trial and self._clock() >= self._trial_at

    def begin(self) -> bool:
        """Notes that an attempt begins, and returns whether it is a trial."""
        assert self.may_begin
        self._in_trial = self.is_open
        return self._in_trial

    def note(self, task: Task, failure: str, is_trial: bool, heard: float) -> None:
        """Notes how an attempt ended. failure: how the system failed it; empty if it did not.
        heard: when its last sign of life came, on the clock."""
        if is_trial:
            self._in_trial = False
        if failure:
            self._last_failure = failure
        if not self.is_open:
            bisect.insort(self._recent, (heard, task, bool(failure)), key=lambda each: each[0])
            del self._recent[: -self.WINDOW]
            if self._must_open():
                self._open()
        elif not failure:
            self._close()
        elif is_trial:
            self._pause = min(2 * self._pause, self.MAX_PAUSE_S)
            self._trial_at = self._clock() + self._pause

    def void(self, is_trial: bool) -> None:
        """Notes that an attempt ended without saying anything about the system."""
        if is_trial:
            self._in_trial = False

    def check(self) -> None:
        """Raises RolloutsFailed if the breaker has been open for longer than `outage_seconds`."""
        if self.is_open and (seconds := self._open_seconds()) > self._outage_seconds:
            raise RolloutsFailed(
                f"for {duration(seconds)} no episode could be played; the last attempt ended with "
                f"{self._last_failure}: remove the cause, then the same command continues"
            )

    def state(self) -> str:
        """Returns why nothing begins; empty while the breaker is closed."""
        if not self.is_open:
            return ""
        wait = max(self._trial_at - self._clock(), 0.0)
        when = "a trial is being played" if self._in_trial else f"the next trial is in {wait:.0f} s"
        return f"episodes are paused, since the last one ended with {self._last_failure}; {when}"

    def _must_open(self) -> bool:
        failed = [task for _, task, is_failure in self._recent if is_failure]
        enough = len(failed) >= max(self.MIN_FAILURES, len(self._recent) / 2)
        return enough and len(set(failed)) >= self.MIN_TASKS

    def _open_seconds(self) -> float:
        assert self._open_since is not None, "the breaker is closed"
        return self._clock() - self._open_since

    def _open(self) -> None:
        self._open_since = self._clock()
        self._pause = self.FIRST_PAUSE_S
        self._trial_at = self._open_since + self._pause
        failures = sum(is_failure for *_, is_failure in self._recent)
        self._record(
            "episodes_paused",
            f"{failures} of the last {len(self._recent)} attempts failed; the last one ended with "
            f"{self._last_failure}",
        )

    def _close(self) -> None:
        seconds = self._open_seconds()
        self._open_since = None
        self._recent.clear()
        self._record("episodes_resumed", f"after a pause of {duration(seconds)}")

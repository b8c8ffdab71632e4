"""The rollout loop: decides what is played next, and delivers the results."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

from ale_jax.config.engine import Sampling
from ale_jax.data.staleness import StalenessGate
from ale_jax.records import EpisodeKey, RolloutRequest, Trajectory
from ale_jax.system.rollouts.load_meter import LoadMeter
from ale_jax.system.rollouts.pool import PLACES, Load

LOOK_S = 5.0  # between two looks for groups that are too old, while no step changes which are


@dataclasses.dataclass(frozen=True)
class Training:
    """What the loop needs to play training groups. All functions are called by its thread.

    next_group: takes the next group of a domain, and returns its index. assign: returns a group's
    attempts; called when the group is admitted. recall: returns the results of those attempts that
    were played before the run was interrupted. deliver: receives each finished trajectory, and
    returns whether its group is complete without those that are still being played.
    drop_overdue: given the oldest start version of the episodes in progress of each group, drops
    the groups that have become too old, and returns them.
    """

    gate: StalenessGate
    next_group: Callable[[int], int]
    assign: Callable[[int], list[RolloutRequest]]
    recall: Callable[[Sequence[RolloutRequest]], list[Trajectory]]
    deliver: Callable[[Trajectory], bool]
    drop_overdue: Callable[[Mapping[int, int]], list[int]]
    sampling: Sampling


class Workers(Protocol):
    """The part of `RolloutWorkers` that the loop uses."""

    @property
    def free_places(self) -> int: ...

    @property
    def loads(self) -> Mapping[str, Load]: ...

    def submit(self, request: RolloutRequest, sampling: Sampling) -> None: ...

    def results(self, timeout: float) -> Iterator[Trajectory]: ...

    def start_versions(self) -> dict[int, int]: ...

    def abandon(self, groups: Collection[int]) -> None: ...


class RolloutLoop:
    """Plays what was asked for first, because callers wait for it, and then training groups as far
    as the staleness gate admits them. Ends the episodes of groups that nobody would train on.

    It has no thread: one thread calls `advance`, again and again, and any thread the other methods.
    Time passes in the workers alone. So a run's loop and the planner's, whose workers and clock are
    simulated, are the same lines.
    """

    def __init__(self, workers: Workers, clock: Callable[[], float] = time.monotonic):
        self._workers, self._clock = workers, clock
        self.delivered = 0  # finished episodes
        self.meter = LoadMeter()
        self._lock = threading.Lock()
        self._queue: deque[tuple[RolloutRequest, Sampling]] = deque()
        self._training: Training | None = None
        self._collecting: dict[EpisodeKey, Callable[[Trajectory], None]] = {}
        self._looked_at, self._next_look = -1, 0.0

    def no_admission(self) -> threading.Lock:
        """Returns a lock: while it is held in a `with` block, no further training group is
        admitted."""
        return self._lock

    def train(self, training: Training | None) -> None:
        """Starts to play training groups, or stops (None): trajectories of the groups that are in
        progress are then dropped."""
        with self._lock:
            self._training = training
            self._looked_at = -1

    def ask(
        self,
        requests: Sequence[RolloutRequest],
        sampling: Sampling,
        collect: Callable[[Trajectory], None],
    ) -> None:
        """Plays episodes before all others in the queue. collect: called with each result."""
        with self._lock:
            self._collecting.update(dict.fromkeys((each.key for each in requests), collect))
            self._queue.extendleft((each, sampling) for each in reversed(requests))

    def advance(self, timeout: float) -> None:
        """Begins what may begin, and delivers what has finished; returns after `timeout` seconds if
        nothing does."""
        self._abandon_overdue()
        self._fill()
        self.meter.note(self._clock(), self._loads())
        for trajectory in self._workers.results(timeout):
            self._deliver(trajectory)

    def _loads(self) -> dict[str, Load]:
        loads = dict(self._workers.loads)
        waiting = loads[PLACES].waiting + len(self._queue)
        return loads | {PLACES: loads[PLACES]._replace(waiting=waiting)}

    def _fill(self) -> None:
        while self._workers.free_places > 0:
            with self._lock:
                recalled = [] if self._queue else self._admit()
                waiting = self._queue.popleft() if self._queue else None
            for trajectory in recalled:  # without the lock: others wait for it
                self._deliver(trajectory)
            if waiting is not None:
                self._workers.submit(*waiting)
            elif not recalled:
                return

    def _admit(self) -> list[Trajectory]:
        """Queues the next training group if there is one and the gate admits it. Those of its
        attempts that were played already are returned instead."""
        training = self._training
        if training is None or (domain := training.gate.next_domain()) is None:
            return []
        group = training.next_group(domain)
        admitted = training.gate.admit(group)
        assert admitted, "only this thread takes permits"
        requests = training.assign(group)
        recalled = training.recall(requests)
        known = {trajectory.episode.key for trajectory in recalled}
        self._queue.extend((each, training.sampling) for each in requests if each.key not in known)
        return recalled

    def _abandon_overdue(self) -> None:
        """Which groups are too old changes when a step takes its groups or is published. The first
        token of a dispatch that spans that moment is known a little later."""
        with self._lock:
            training = self._training
        if training is None:
            return
        step, now = training.gate.next_step, self._clock()
        if step == self._looked_at and now < self._next_look:
            return
        self._looked_at, self._next_look = step, now + LOOK_S
        self._abandon(training.drop_overdue(self._workers.start_versions()))

    def _abandon(self, groups: Collection[int]) -> None:
        if not groups:
            return
        with self._lock:
            left = (each for each in self._queue if not _is_of(each[0].key, groups))
            self._queue = deque(left)
        self._workers.abandon(groups)

    def _deliver(self, trajectory: Trajectory) -> None:
        key = trajectory.episode.key
        self.delivered += 1
        with self._lock:
            collect = self._collecting.pop(key, None)
            training = self._training
        if collect is not None:
            collect(trajectory)
        # Nobody waits for a result of a group that was dropped meanwhile.
        elif training is not None and training.gate.in_flight(key.group):
            is_complete_without_others = training.deliver(trajectory)
            if is_complete_without_others:
                self._abandon([key.group])


def _is_of(key: EpisodeKey, groups: Collection[int]) -> bool:
    return key.is_trained_on and key.group in groups

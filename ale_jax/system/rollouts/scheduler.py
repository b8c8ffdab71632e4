"""The rollout loop: keeps the workers busy, and delivers their results."""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

from ale_jax.config.engine import Sampling
from ale_jax.data.staleness import StalenessGate
from ale_jax.records import EpisodeKey, RolloutRequest, Trajectory
from ale_jax.system.rollouts.workers import RolloutWorkers


@dataclasses.dataclass(frozen=True)
class Training:
    """What the scheduler needs to play training groups. All functions are called by its thread.

    next_group: takes the next group of a domain, and returns its index. assign: returns a group's
    attempts; called when the group is admitted. recall: returns the results of those attempts that
    were played before the run was interrupted. deliver: receives each finished trajectory.
    drop_overdue: given the oldest start version of the episodes in progress of each group, drops
    the groups that have become too old, and returns them.
    """

    gate: StalenessGate
    next_group: Callable[[int], int]
    assign: Callable[[int], list[RolloutRequest]]
    recall: Callable[[Sequence[RolloutRequest]], list[Trajectory]]
    deliver: Callable[[Trajectory], None]
    drop_overdue: Callable[[Mapping[int, int]], list[int]]
    sampling: Sampling


class RolloutScheduler:
    """Plays evaluations and training groups on the rollout workers.

    Consumes: episodes of `evaluate` and `play` first, because callers wait for them, and then
    training groups as far as the staleness gate admits them. Ends the episodes of groups that have
    become too old to be trained on.
    Waits for: a free slot of a worker, or the next finished episode.
    Unblocked by: the workers' results, `evaluate`, `train`, a publish (within POLL s).
    """

    POLL = 0.02  # seconds

    def __init__(self, workers: RolloutWorkers, check_system: Callable[[], None]):
        """check_system: raises if the policy's engine or Ray has failed."""
        self._workers, self._check_system = workers, check_system
        self.delivered = 0  # finished episodes
        self._lock = threading.Lock()
        self._queue: deque[tuple[RolloutRequest, Sampling]] = deque()
        self._training: Training | None = None
        self._collecting: dict[EpisodeKey, Callable[[Trajectory], None]] = {}
        self._closing = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="rollout-scheduler", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._abandon_overdue()
                self._fill()
                for trajectory in self._workers.results(timeout=self.POLL):
                    self._deliver(trajectory)
        except Exception as error:  # raised in the threads that wait for results, by `check`
            self._failure = error
        except BaseException as error:  # a SystemExit would end them without a word
            self._failure = RuntimeError(f"the rollout scheduler was ended by {error!r}")
            self._failure.__cause__ = error

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def __enter__(self) -> RolloutScheduler:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def check(self) -> None:
        """Raises the error that ended the scheduler, the policy's engine or Ray, if there is one.
        After that no results come back, or only results that do not depend on the policy."""
        self._check_system()
        if self._failure is not None:
            raise self._failure

    def no_admission(self) -> threading.Lock:
        """Returns a lock: while it is held in a `with` block, no further training group is
        admitted."""
        return self._lock

    def train(self, training: Training | None) -> None:
        """Starts to play training groups, or stops (None): trajectories of the groups that are in
        progress are then dropped."""
        with self._lock:
            self._training = training

    def evaluate(
        self,
        keys: Sequence[EpisodeKey],
        sampling: Sampling,
        on_result: Callable[[int], None] = lambda done: None,
    ) -> list[Trajectory]:
        """Plays each of `keys` once and returns all trajectories, in the order of `keys`."""
        return self.play([RolloutRequest(key) for key in keys], sampling, on_result)

    def play(
        self,
        requests: Sequence[RolloutRequest],
        sampling: Sampling,
        on_result: Callable[[int], None] = lambda done: None,
        on_trajectory: Callable[[Trajectory], None] = lambda trajectory: None,
    ) -> list[Trajectory]:
        """Plays episodes like `evaluate`, for episodes that may start after a prefix. They are
        played before all episodes in the queue. on_trajectory: called with each as it finishes, in
        the caller's thread."""
        results: dict[EpisodeKey, Trajectory] = {}
        fresh: deque[Trajectory] = deque()
        changed = threading.Condition()

        def collect(trajectory: Trajectory) -> None:
            with changed:
                results[trajectory.episode.key] = trajectory
                fresh.append(trajectory)
                changed.notify()

        keys = [each.key for each in requests]
        with self._lock:
            self._collecting.update(dict.fromkeys(keys, collect))
            self._queue.extendleft((each, sampling) for each in reversed(requests))
        with changed:
            told = 0
            while told < len(keys):
                if not fresh:
                    changed.wait(timeout=0.5)
                self.check()
                on_result(len(results))
                while fresh:
                    on_trajectory(fresh.popleft())
                    told += 1
        self.check()
        return [results[key] for key in keys]

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
        with self._lock:
            training = self._training
        if training is None:
            return
        overdue = training.drop_overdue(self._workers.start_versions())
        if overdue:
            with self._lock:
                left = (each for each in self._queue if not _is_of(each[0].key, overdue))
                self._queue = deque(left)
            self._workers.abandon(overdue)

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
            training.deliver(trajectory)


def _is_of(key: EpisodeKey, groups: Collection[int]) -> bool:
    return key.is_trained_on and key.group in groups

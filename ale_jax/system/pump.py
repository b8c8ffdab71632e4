"""The rollout loop: keeps the crew busy, and sends what comes back to where it belongs."""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from ale_jax.data.staleness import StalenessGate
from ale_jax.model.sampler import Sampling
from ale_jax.records import Assignment, Slot, Trajectory
from ale_jax.system.crew import Crew


@dataclasses.dataclass(frozen=True)
class Training:
    """What training rollouts are made of.

    groups: indices still to be played, in order; assign: a group's attempts, decided when it is
    admitted; deliver: where a trajectory goes when it is back.
    """

    gate: StalenessGate
    groups: Iterator[int]
    assign: Callable[[int], list[Assignment]]
    deliver: Callable[[Trajectory], None]
    sampling: Sampling


class Pump:
    """Plays evaluations and training groups through one crew.

    Consumes: what somebody waits for first, then training groups as far as the gate admits them.
    Waits for: a free place in the crew, or the next finished episode.
    Unblocked by: the crew's results, `evaluate`, `train`, a publish (within POLL s).
    """

    POLL = 0.02  # seconds

    def __init__(self, crew: Crew, check_policy: Callable[[], None]):
        """check_policy: raises if the policy that the crew speaks with is no more."""
        self._crew, self._check_policy = crew, check_policy
        self._lock = threading.Lock()
        self._queue: deque[tuple[Assignment, Sampling]] = deque()
        self._training: Training | None = None
        self._collecting: dict[Slot, Callable[[Trajectory], None]] = {}
        self._closing = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="pump", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._fill()
                trajectory = self._crew.next_result(timeout=self.POLL)
                if trajectory is not None:
                    self._deliver(trajectory)
        except Exception as error:  # told to whoever waits for results, by `check`
            self._failure = error

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def __enter__(self) -> Pump:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def check(self) -> None:
        """Raises what ended the pump or the policy, if anything did: nothing will come back any
        more, or nothing that says anything of the policy."""
        self._check_policy()
        if self._failure is not None:
            raise self._failure

    def no_admission(self) -> threading.Lock:
        """Held in a `with` block, it keeps further training groups from being admitted."""
        return self._lock

    def train(self, training: Training | None) -> None:
        """Starts feeding training groups, or stops (None): what is under way then is not kept."""
        with self._lock:
            self._training = training

    def evaluate(
        self,
        slots: Sequence[Slot],
        sampling: Sampling,
        on_result: Callable[[int], None] = lambda done: None,
    ) -> list[Trajectory]:
        """Plays `slots` once each and waits for all. Order as given."""
        return self.play([Assignment(slot) for slot in slots], sampling, on_result)

    def play(
        self,
        assignments: Sequence[Assignment],
        sampling: Sampling,
        on_result: Callable[[int], None] = lambda done: None,
    ) -> list[Trajectory]:
        """As `evaluate`, for episodes that need not start at the beginning. Comes before what is
        queued: somebody waits for it."""
        results: dict[Slot, Trajectory] = {}
        changed = threading.Condition()

        def collect(trajectory: Trajectory) -> None:
            with changed:
                results[trajectory.episode.slot] = trajectory
                changed.notify()

        slots = [each.slot for each in assignments]
        with self._lock:
            self._collecting.update(dict.fromkeys(slots, collect))
            self._queue.extendleft((each, sampling) for each in reversed(assignments))
        with changed:
            while len(results) < len(slots):
                changed.wait(timeout=0.5)
                self.check()
                on_result(len(results))
        self.check()
        return [results[slot] for slot in slots]

    def _fill(self) -> None:
        while self._crew.free_places > 0:
            with self._lock:
                if not self._queue and not self._admit():
                    return
                assignment, sampling = self._queue.popleft()
            self._crew.submit(assignment, sampling)

    def _admit(self) -> bool:
        """Queues the next training group if there is one and the gate lets it."""
        training = self._training
        if training is None or not training.gate.has_permit():
            return False
        group = next(training.groups, None)
        if group is None:
            return False
        admitted = training.gate.admit(group)
        assert admitted, "only this thread takes permits"
        self._queue.extend((each, training.sampling) for each in training.assign(group))
        return True

    def _deliver(self, trajectory: Trajectory) -> None:
        slot = trajectory.episode.slot
        with self._lock:
            collect = self._collecting.pop(slot, None)
            training = self._training
        if collect is not None:
            collect(trajectory)
        elif training is not None:
            training.deliver(trajectory)

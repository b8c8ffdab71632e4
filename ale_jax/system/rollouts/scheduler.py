"""The thread of the rollout loop, and those who wait for it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from ale_jax.config.engine import Sampling
from ale_jax.records import EpisodeKey, RolloutRequest, Trajectory
from ale_jax.system.rollouts.loop import RolloutLoop, Training, Workers


class RolloutScheduler:
    """Plays evaluations and training groups on the rollout workers, in a thread of its own.

    Consumes: episodes of `evaluate` and `play`, and the groups of `train` (see RolloutLoop).
    Waits for: a free slot of a worker, or the next finished episode.
    Unblocked by: the workers' results, `evaluate`, `train`, a publish (within POLL s).
    """

    POLL = 0.02  # seconds

    def __init__(self, workers: Workers, check_system: Callable[[], None]):
        """check_system: raises if the policy's engine or Ray has failed."""
        self._loop, self._check_system = RolloutLoop(workers), check_system
        self._closing = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="rollout-scheduler", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._loop.advance(self.POLL)
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

    @property
    def delivered(self) -> int:
        """The number of finished episodes."""
        return self._loop.delivered

    def take_loads(self) -> dict[str, float]:
        """As `LoadMeter.take`."""
        return self._loop.meter.take()

    def no_admission(self) -> threading.Lock:
        """As `RolloutLoop.no_admission`."""
        return self._loop.no_admission()

    def train(self, training: Training | None) -> None:
        """As `RolloutLoop.train`."""
        self._loop.train(training)

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
        self._loop.ask(requests, sampling, collect)
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

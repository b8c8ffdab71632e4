"""Plays episodes with the policy of a run outside of it, such as its evaluation once more."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ale_jax.config.engine import Sampling
from ale_jax.config.run import RunConfig
from ale_jax.learn.checkpoint import Checkpoints
from ale_jax.monitor.evaluations import Evaluation
from ale_jax.records import EpisodeKey, RolloutRequest, Trajectory
from ale_jax.system.compilation import keep_compiled
from ale_jax.system.hosts.commands import Alone
from ale_jax.system.interpreter import made_for_serving
from ale_jax.system.rollouts.opening import open_rollouts
from ale_jax.system.rollouts.scheduler import RolloutScheduler
from ale_jax.system.snapshot import snapshot
from ale_jax.system.start import make_setting, restore
from ale_jax.system.stopping import StopSignals
from ale_jax.system.tasks import require_judged, tally
from ale_jax.worlds.schedule import Schedule

NAME = "newest"


def evaluate(config: RunConfig, path: Path) -> Evaluation:
    """Returns how the newest policy of the run in `path` does; writes nothing there.

    Raises:
      ValueError: there is no run of this config, or it has no checkpoint yet.
      RolloutsFailed: the episodes cannot be played.
    """
    began = time.monotonic()
    with opened(config, path) as run:
        keys = run.schedule.evaluation(NAME, config.eval)
        played = run.play(keys, config.eval_sampling)
        seconds = time.monotonic() - began
        evaluation = tally(NAME, run.step, seconds, played, run.schedule)
        require_judged(evaluation, len(keys))
        return evaluation


@dataclasses.dataclass(frozen=True)
class OpenRun:
    """A run whose policy can play. step: of its weights."""

    step: int
    schedule: Schedule
    scheduler: RolloutScheduler
    stop: StopSignals

    def play(
        self,
        keys: Sequence[EpisodeKey],
        sampling: Sampling,
        on_trajectory: Callable[[Trajectory], None] = lambda trajectory: None,
    ) -> list[Trajectory]:
        """Plays each of `keys` once; calls `on_trajectory` with each as it finishes."""
        requests = [RolloutRequest(key) for key in keys]
        check = lambda done: self.stop.check()  # noqa: E731
        return self.scheduler.play(requests, sampling, check, on_trajectory)


@contextlib.contextmanager
def opened(config: RunConfig, path: Path, step: int | None = None) -> Iterator[OpenRun]:
    """Opens the run in `path` with the newest weights, or those of a step, for the block. The run
    may go on meanwhile.

    ValueError as `evaluate`, and if there is no checkpoint of that step.
    """
    keep_compiled(config.compilation_cache)
    with contextlib.ExitStack() as stack:
        workdir = stack.enter_context(snapshot(path, config))
        stop = stack.enter_context(StopSignals(config.checkpoint.grace_seconds))
        setting = make_setting(config, workdir, stop, Alone())
        stack.callback(setting.files.close)
        files = workdir.checkpoints, config.checkpoint.keep, _ignore, setting.files, workdir.lease
        start = restore(setting, stack.enter_context(Checkpoints(*files)), step)
        if start is None:
            raise ValueError(f"there is no checkpoint in {path}: go on with the run")
        scheduler = open_rollouts(setting, start, _ignore, "", stack).scheduler
        stack.enter_context(made_for_serving())
        yield OpenRun(start.cursor.step, setting.schedule, scheduler, stop)


def _ignore(kind: str, detail: str = "", **fields: object) -> None:
    """Stands for the log of a run, which an evaluation outside of it does not continue."""

"""Plays the evaluation tasks of a run once more, with its newest policy."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from ale_jax.config.run import RunConfig
from ale_jax.learn.checkpoint import Checkpoints
from ale_jax.monitor.evaluations import Evaluation
from ale_jax.system.compilation import keep_compiled
from ale_jax.system.hosts.commands import Alone
from ale_jax.system.rollouts.opening import open_rollouts
from ale_jax.system.start import make_setting, restore
from ale_jax.system.stopping import StopSignals
from ale_jax.system.tasks import require_judged, tally
from ale_jax.system.workdir import Workdir

NAME = "newest"


def evaluate(config: RunConfig, path: Path) -> Evaluation:
    """Returns how the newest policy of the run in `path` does; writes nothing there.

    Raises:
      ValueError: there is no run of this config, it is in use, or it has no checkpoint yet.
      RolloutsFailed: the episodes cannot be played.
    """
    began = time.monotonic()
    keep_compiled(config.compilation_cache)
    with contextlib.ExitStack() as stack:
        workdir = stack.enter_context(Workdir.open(path, config))
        stop = stack.enter_context(StopSignals(config.checkpoint.grace_seconds))
        setting = make_setting(config, workdir, stop, Alone())
        stack.callback(setting.files.close)
        files = workdir.checkpoints, config.checkpoint.keep, _ignore, setting.files, workdir.lease
        start = restore(setting, stack.enter_context(Checkpoints(*files)))
        if start is None:
            raise ValueError(f"there is no checkpoint in {workdir.checkpoints}: go on with the run")
        scheduler = open_rollouts(setting, start, _ignore, "", stack).scheduler
        keys = setting.schedule.evaluation(NAME, config.eval)
        played = scheduler.evaluate(keys, config.eval_sampling, lambda _: stop.check())
        seconds = time.monotonic() - began
        evaluation = tally(NAME, start.cursor.step, seconds, played, setting.schedule)
        require_judged(evaluation, len(keys))
        return evaluation


def _ignore(kind: str, detail: str = "", **fields: object) -> None:
    """Stands for the log of a run, which an evaluation outside of it does not continue."""

"""When a run's state is saved: at the steps that the config names, and when the run is stopped."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from ale_jax.data.journal import Journal
from ale_jax.learn.checkpoint import Checkpoints
from ale_jax.system.config import RunConfig
from ale_jax.system.tasks import Cursor
from ale_jax.system.trainer import STATE, Trainer


class _Point(NamedTuple):
    cursor: Cursor
    updates: int  # of the trainer, at this cursor
    resampling: Callable[[], dict[str, Any] | None]


class Saver:
    """Saves states that are due, and the newest one if the run is stopped after it."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        journal: Journal,
        config: RunConfig,
        trainer: Trainer,
        cursor: Cursor,
    ):
        """cursor: of the state that the run starts from."""
        self._checkpoints, self._journal = checkpoints, journal
        self._config, self._trainer = config, trainer
        self._newest: _Point | None = None  # of the states that are not saved
        self._saved = cursor  # of the last checkpoint that was begun

    def save(self, cursor: Cursor, resampling: Callable[[], dict[str, Any] | None]) -> None:
        """Saves the state after a step if it is due. resampling: see `Resampler.snapshot`."""
        self._newest = _Point(cursor, self._trainer.updates, resampling)
        if self._saved.step == 0:
            # A run that recorded a step, but has no checkpoint, is taken for a damaged one.
            self._checkpoints.wait()
        if self._config.checkpoint.is_due(cursor.step, self._config.rl.steps):
            self.save_newest()

    def save_newest(self) -> None:
        """Saves the state after the newest step, unless it is saved already, or the next step has
        changed it meanwhile."""
        point, self._newest = self._newest, None
        if point is not None and point.updates == self._trainer.updates:
            self._checkpoints.wait()  # so that the last one is durable
            self._journal.begin_segment(self._saved.is_open)
            self._saved = cursor = dataclasses.replace(point.cursor, resampling=point.resampling())
            self._checkpoints.save(cursor.step, STATE, dataclasses.asdict(cursor))

"""When a run's state is saved: at the steps that the config names, and when the run is stopped."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from ale_jax.config.run import RunConfig
from ale_jax.data.journal import Journal
from ale_jax.learn.checkpoint import Checkpoints
from ale_jax.monitor.events import Recorder
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
        record: Recorder,
    ):
        """cursor: of the state that the run starts from. record: called with each event."""
        self._checkpoints, self._journal = checkpoints, journal
        self._config, self._trainer, self._record = config, trainer, record
        self._newest: _Point | None = None  # of the states that are not saved
        self._begun: _Point | None = None  # of the last checkpoint that was begun here
        # Of the same checkpoint, which is durable, or being written, or has failed, as
        # `_last_failed` finds out. Before it, of the state that was restored, which is durable, or
        # of that of a new run, which is the first one to be saved.
        self._last = cursor

    def save(self, cursor: Cursor, resampling: Callable[[], dict[str, Any] | None]) -> None:
        """Saves the state after a step if it is due, or if the last save failed, as `save_newest`
        does. resampling: see `Resampler.snapshot`."""
        self._newest = _Point(cursor, self._trainer.updates, resampling)
        if self._last.step == 0:
            # A run that recorded a step, but has no checkpoint, is taken for a damaged one.
            self._checkpoints.wait()
        is_due = self._config.checkpoint.is_due(cursor.step, self._config.rl.steps)
        if is_due or self._checkpoints.has_failed():
            self.save_newest()

    def save_newest(self) -> None:
        """Saves the state after the newest step, unless it is saved already, or the next step has
        changed it meanwhile.

        If the last save failed, that is recorded, and this one is waited for. OSError if it cannot
        be written either.
        """
        failed = self._last_failed()
        point, self._newest = self._newest or (self._begun if failed else None), None
        if point is None or point.updates != self._trainer.updates:
            return
        if not failed:  # or a resumed run still needs what the last checkpoint would have closed
            self._journal.begin_segment(self._last.is_open)
        self._begun = point
        self._last = cursor = dataclasses.replace(point.cursor, resampling=point.resampling())
        self._checkpoints.save(cursor.step, STATE, dataclasses.asdict(cursor))
        if failed:
            self._checkpoints.wait()

    def _last_failed(self) -> bool:
        """Waits until the last save is durable, or records why it is not."""
        try:
            self._checkpoints.wait()
        except OSError as error:
            self._record("checkpoint_failed", str(error))
            return True
        return False

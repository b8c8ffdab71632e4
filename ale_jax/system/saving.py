"""When a run's state is saved: at the steps that the config names, and when the run is stopped."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from ale_jax.data.journal import Journal
from ale_jax.learn.checkpoint import Checkpoints
from ale_jax.learn.state import TrainState, WholeState
from ale_jax.system.config import RunConfig
from ale_jax.system.start import Start
from ale_jax.system.tasks import Cursor


class _Point(NamedTuple):
    cursor: Cursor
    state: WholeState
    resampling: Callable[[], dict[str, Any] | None]


class Saver:
    """Saves states that are due, and holds the newest one, in case the run is stopped after it."""

    def __init__(self, checkpoints: Checkpoints, journal: Journal, config: RunConfig, start: Start):
        self._checkpoints, self._journal = checkpoints, journal
        self._config, self._start = config, start
        self._newest: _Point | None = None  # of the states that are not saved
        self._saved = start.cursor  # of the last checkpoint that was begun

    def save(
        self, state: TrainState, cursor: Cursor, resampling: Callable[[], dict[str, Any] | None]
    ) -> None:
        """Saves the state after a step if it is due. resampling: see `Resampler.snapshot`."""
        self._newest = _Point(cursor, self._start.whole(state), resampling)
        if self._config.checkpoint.is_due(cursor.step, self._config.rl.steps):
            self.save_newest()

    def save_newest(self) -> None:
        """Saves the state after the newest step unless it is saved already. To be called between
        two steps: an update takes over the memory of the state before it."""
        point, self._newest = self._newest, None
        if point is not None:
            self._checkpoints.wait()  # so that the last one is durable
            self._journal.begin_segment(self._saved.is_open)
            self._saved = cursor = dataclasses.replace(point.cursor, resampling=point.resampling())
            self._checkpoints.save(cursor.step, point.state, dataclasses.asdict(cursor))

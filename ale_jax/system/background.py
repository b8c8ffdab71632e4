"""Tasks of an event loop that nobody awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from ale_jax.sandbox.pool.api import Record


class Background:
    """Holds them until they end, and records as `fleet_trouble` what one of them fails of."""

    def __init__(self, record: Record):
        self._record = record
        self._tasks: set[asyncio.Task] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _note_end(self, task: asyncio.Task) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._record("fleet_trouble", repr(error))

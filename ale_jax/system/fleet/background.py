"""Background work beside an event loop: tasks that nobody awaits, and blocking calls of Ray."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
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


async def bounded(seconds: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a blocking call of Ray's returns. Errors: its own, and TimeoutError.

    Its thread is a daemon: one that hangs for ever does not keep the process.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def tell(settle: Callable[[Any], None], value: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(lambda: answer.done() or settle(value))

    def run() -> None:
        try:
            tell(answer.set_result, function(*arguments))
        except Exception as error:  # for whoever waits
            tell(answer.set_exception, error)

    threading.Thread(target=run, name="ray-call", daemon=True).start()
    async with asyncio.timeout(seconds):
        return await answer

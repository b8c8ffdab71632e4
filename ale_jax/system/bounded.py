"""Blocking calls of Ray's, from an event loop and within bounds."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any


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

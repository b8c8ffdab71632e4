"""Closing a pool before its process ends, if that is asked to end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from ale_jax.sandbox.pool.api import SandboxPool

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class ManagedPool(SandboxPool, AbstractAsyncContextManager, Protocol):
    """Open for the time of an `async with` block."""


@contextlib.asynccontextmanager
async def closed_at_exit(pool: ManagedPool) -> AsyncIterator[ManagedPool]:
    """An open pool, for the block of a program's main task, in its main thread.

    SIGINT and SIGTERM cancel the block, once; when the pool is closed, which is bounded, they
    become KeyboardInterrupt and SystemExit. A process that is killed closes nothing: its machines
    end with their connections, and the next pool's reaper removes what they leave.
    """
    loop, block = asyncio.get_running_loop(), asyncio.current_task()
    received: list[signal.Signals] = []

    def leave(number: signal.Signals) -> None:
        if not received:
            received.append(number)
            block.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, leave, number)
    try:
        async with pool:
            yield pool
    except asyncio.CancelledError:
        if received:
            block.uncancel()
        else:
            raise
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
        if signal.SIGTERM in received:
            raise SystemExit(128 + signal.SIGTERM)
        if received:
            raise KeyboardInterrupt

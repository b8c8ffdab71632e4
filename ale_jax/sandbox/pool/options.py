"""What the operator of a node's pool decides, and how the pool is closed when its process is asked
to end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from ale_jax.sandbox.pool.api import SandboxPool

SNAPSHOT_MB = 1024


@dataclasses.dataclass(frozen=True)
class PoolOptions:
    """Times are in seconds.

    node: its name; empty: the host's. slots: sandboxes that may exist at once, warm ones among
    them. creates: how many are started at the same time; 0: twice the number of cores, beyond
    which each only gets slower. launch_seconds, close_seconds: after which a start has failed, and
    an end is left to the reaper.
    tick_seconds: between two looks at every sandbox. ask_ticks: how many ticks an answer holds.
    silent_ticks, silent_busy_ticks: of silence that are taken for death, and while a call is under
    way, when the runner may be killing a fork bomb and answers nothing else. Death is counted in
    ticks, not by the clock: a node that stood still itself, or is overloaded, blames nobody.
    max_losses: in a row, with no call that succeeded between them, before re-creation is given up.
    remember_seconds: how long the status of one that ended can be asked for.
    snapshot_directory: where snapshots lie, also for the next pool; empty: a temporary one.
    snapshot_mb: how much they may take together.
    """

    node: str = ""
    slots: int = 64
    creates: int = 0
    launch_seconds: float = 90.0
    close_seconds: float = 10.0
    tick_seconds: float = 0.25
    ask_ticks: int = 2
    silent_ticks: int = 4
    silent_busy_ticks: int = 60
    max_losses: int = 5
    remember_seconds: float = 600.0
    reap_every_seconds: float = 60.0
    snapshot_directory: str = ""
    snapshot_mb: int = SNAPSHOT_MB

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, str) or field.name == "creates":
                continue
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"pool {field.name} {value} must be more than 0")
        if self.creates < 0:
            raise ValueError(f"pool creates {self.creates} must be 0 (twice the cores) or more")

    @property
    def name(self) -> str:
        return self.node or socket.gethostname()

    @property
    def creates_at_once(self) -> int:
        return self.creates or 2 * (os.cpu_count() or 1)


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

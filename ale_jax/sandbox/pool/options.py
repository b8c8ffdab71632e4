"""The options of a node's pool, and closing the pool when its process receives a signal to end."""

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

from ale_jax.sandbox.pool.accounting import Room, cpus_here, memory_here_mb
from ale_jax.sandbox.pool.api import SandboxPool

SNAPSHOT_MB = 1024
DETECTED = ("creates", "memory_mb", "cpus")  # 0: as many as the machine suggests


@dataclasses.dataclass(frozen=True)
class PoolOptions:
    """Times are in seconds.

    node: the node's name; empty: the host name. slots: maximum number of sandboxes, including warm
    ones. memory_mb, cpus: how much the specs of all sandboxes together may ask for; 0: 90 % of the
    memory that this process may use, and its cores. cpu_overcommit: factor on cpus, more than 1
    because agents mostly wait for their policy.
    creates: how many may start concurrently; 0: twice the number of cores, beyond which each
    start only becomes slower. launch_seconds: after this time a start has failed. close_seconds:
    after this time the end of a sandbox is left to the reaper.
    tick_seconds: interval between two checks of all sandboxes. ask_ticks: how many ticks an answer
    remains valid. silent_ticks, silent_busy_ticks: ticks without an answer after which a sandbox
    counts as dead; the second applies during a call, because the runner may be killing a fork bomb
    and answer nothing else. Silence is counted in ticks rather than by the clock, so that a node
    that was itself suspended or overloaded does not declare its sandboxes dead; ticks in which the
    runner waited for a CPU do not count (`sandbox/vitals.py`).
    max_losses: consecutive losses, without a successful call in between, after which a sandbox is
    no longer re-created.
    remember_seconds: how long the status of an ended sandbox remains available.
    snapshot_directory: where snapshots are stored, also for later pools; empty: a temporary
    directory.
    snapshot_mb: maximum total size of the snapshots of each owner of sandboxes.
    """

    node: str = ""
    slots: int = 64
    memory_mb: int = 0
    cpus: float = 0.0
    cpu_overcommit: float = 8.0
    creates: int = 0
    launch_seconds: float = 90.0
    close_seconds: float = 10.0
    tick_seconds: float = 0.25
    ask_ticks: int = 3
    silent_ticks: int = 3
    silent_busy_ticks: int = 60
    max_losses: int = 5
    remember_seconds: float = 600.0
    reap_every_seconds: float = 60.0
    snapshot_directory: str = ""
    snapshot_mb: int = SNAPSHOT_MB

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, str):
                continue
            if field.name in DETECTED:
                if not (math.isfinite(value) and value >= 0):
                    raise ValueError(f"pool {field.name} {value} must be 0 (detected) or more")
            elif not (math.isfinite(value) and value > 0):
                raise ValueError(f"pool {field.name} {value} must be more than 0")

    @property
    def name(self) -> str:
        return self.node or socket.gethostname()

    def capacity(self) -> Room:
        """The room on this machine, including what may be overcommitted."""
        return Room(
            self.slots,
            self.memory_mb or memory_here_mb(),
            (self.cpus or cpus_here()) * self.cpu_overcommit,
            math.inf,  # writable directories are in memory
        )

    @property
    def creates_at_once(self) -> int:
        return self.creates or 2 * (os.cpu_count() or 1)


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class ManagedPool(SandboxPool, AbstractAsyncContextManager, Protocol):
    """A pool that is open for the duration of an `async with` block."""


@contextlib.asynccontextmanager
async def closed_at_exit(pool: ManagedPool) -> AsyncIterator[ManagedPool]:
    """Opens a pool for the block. For a program's main task, in its main thread.

    The first SIGINT or SIGTERM cancels the block; further ones are ignored. Once the pool is
    closed, which takes a limited time, the signal becomes KeyboardInterrupt or SystemExit. A
    process that is killed closes nothing: its machines end with their connections, and the next
    pool's reaper removes what is left of them.
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

"""Watches over a pool: finds the dead, ends the overdue, refills, and calls the reaper."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from ale_jax.sandbox.pool.api import Record, State
from ale_jax.sandbox.pool.lives import Lives
from ale_jax.sandbox.pool.machines import Machines
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.sandbox.pool.warm import WarmPool

log = logging.getLogger(__name__)


class Keeper:
    """The pool's clockwork. fault: why it stands still, if it does; the pool takes no more then."""

    def __init__(
        self, lives: Lives, machines: Machines, warm: WarmPool, options: PoolOptions, record: Record
    ):
        self.fault: BaseException | None = None
        self._lives, self._machines, self._warm = lives, machines, warm
        self._options, self._record = options, record
        self._loops: list[asyncio.Task] = []

    def start(self) -> None:
        self._loops = [self._spawn(self._keep_ticking()), self._spawn(self._keep_reaping())]

    def stop(self) -> None:
        for loop in self._loops:
            loop.cancel()

    def tick(self) -> None:
        """One look at every sandbox. It waits for none of them."""
        for member in list(self._lives.members.values()):
            if not member.life.is_up:
                continue
            options = self._options
            patience = options.silent_busy_ticks if member.busy else options.silent_ticks
            if reason := member.pulse.beat(member.sandbox, patience):
                self._lives.lose(member, reason)
            elif member.life.state is State.RUNNING and (cause := member.overdue()):
                self._lives.end(member, cause)
        self._lives.forget()
        self._warm.refill()

    async def _keep_ticking(self) -> None:
        """Consumes nothing; waits for the time of the next tick."""
        while True:
            await asyncio.sleep(self._options.tick_seconds)
            self.tick()

    async def _keep_reaping(self) -> None:
        """Waits for the time of the next reaping, and for its end, which is bounded."""
        while True:
            await asyncio.sleep(self._options.reap_every_seconds)
            await self._machines.reap()

    def _spawn(self, loop: Coroutine[Any, Any, None]) -> asyncio.Task:
        task = asyncio.get_running_loop().create_task(loop)
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, loop: asyncio.Task) -> None:
        if not loop.cancelled() and (fault := loop.exception()):
            self.fault = fault
            log.error("the pool is out of order", exc_info=fault)
            self._record("pool_fault", repr(fault))

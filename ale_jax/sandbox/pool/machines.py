"""Starting and ending machines within bounds on their number and on the time that it takes.

This is the only file of the pool that uses the runtime.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.async_sandbox import AsyncSandbox
from ale_jax.sandbox.pool.api import Record
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.sandbox.spec import SandboxSpec


class Start(Protocol):
    """arrival: done when it runs, or with the reason why it never will. starters: how many wait
    for it. was_delivered: one of them has it."""

    arrival: asyncio.Future[None]
    starters: int
    was_delivered: bool


S = TypeVar("S", bound=Start)


async def first_ready(starts: Sequence[S], count: int) -> list[S]:
    """The first `count` that run, in that order; they have been delivered then.

    Waits for all of them; is unblocked by the last that is wanted, or by the failure that leaves
    too few, whose error it raises.
    """
    for start in starts:
        start.starters += 1
    try:
        won = await _first_up(starts, count)
    finally:
        for start in starts:
            start.starters -= 1
    for start in won:
        start.was_delivered = True
    return won


async def _first_up(starts: Sequence[S], count: int) -> list[S]:
    waiting = {start.arrival: start for start in starts}
    won: list[S] = []
    while len(won) < count:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for arrival in [each for each in waiting if each.done()]:
            start = waiting.pop(arrival)
            error = arrival.exception()
            if error is None:
                won.append(start)
            elif len(won) + len(waiting) < count:
                raise error
    return won[:count]


REAP_S = 60.0


class Launches(Protocol):
    """What a pool needs of a runtime."""

    name: str

    async def prepare(self, spec: SandboxSpec) -> None: ...

    async def launch(
        self, spec: SandboxSpec, labels: Mapping[str, str], record: Record
    ) -> AsyncSandbox:
        """record: told of what its network is denied."""

    def reap(self) -> int: ...


class Machines:
    """Slots, and the machines in them.

    A slot is reserved before anything is awaited, and is free again when what was in it is gone:
    when `launch` failed, or `end` is done. A launch that nobody waits for any more is not cancelled
    (a runtime could forget what it has half made) but awaited in the background, and ended.
    """

    def __init__(self, runtime: Launches, options: PoolOptions, record: Record):
        self.runtime_name = runtime.name
        self.slots = self.free = options.slots
        self._runtime, self._options, self._record = runtime, options, record
        self._permits = asyncio.Semaphore(options.creates_at_once)
        self._background: set[asyncio.Task] = set()

    def reserve(self) -> bool:
        """Takes a slot, if one is free."""
        if self.free == 0:
            return False
        self.free -= 1
        return True

    def give_back(self, after: asyncio.Task | None = None) -> None:
        """A reserved slot that is not used. after: what still has to end in it."""
        if after is not None and not after.done():
            after.add_done_callback(lambda _: self.give_back())
            return
        self.free += 1
        assert self.free <= self.slots, (self.free, self.slots)

    async def prepare(self, spec: SandboxSpec) -> None:
        """Makes what starts of `spec` need be there: its image is built. Errors: the runtime's."""
        await self._runtime.prepare(spec)

    async def launch(
        self,
        spec: SandboxSpec,
        labels: Mapping[str, str],
        record: Record,
        begins: Callable[[], None],
        after: asyncio.Task | None = None,
        pause: float = 0.0,
    ) -> AsyncSandbox:
        """A machine in a reserved slot. Errors: SandboxStartError, and those of the runtime.

        record: for the runtime. begins: called when its turn has come. after: the end of what was
        in the slot before. pause: seconds to wait first.
        """
        try:
            await asyncio.sleep(pause)
            if after is not None:
                await asyncio.shield(after)
            await self._permits.acquire()
        except BaseException:
            self.give_back(after)
            raise
        try:
            begins()
            launch = self._runtime.launch(spec, labels, record)
            return await self._bounded(asyncio.get_running_loop().create_task(launch))
        finally:
            self._permits.release()

    async def _bounded(self, launch: asyncio.Task[AsyncSandbox]) -> AsyncSandbox:
        seconds = self._options.launch_seconds
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(launch)
        except TimeoutError as error:
            self._disown(launch)
            raise SandboxStartError(f"no sandbox within {seconds:g} s") from error
        except BaseException:
            self._disown(launch)
            raise

    def _disown(self, launch: asyncio.Task[AsyncSandbox]) -> None:
        if launch.done() and (launch.cancelled() or launch.exception()):
            self.give_back()
        else:
            self._spawn(self._end_late(launch))

    async def _end_late(self, launch: asyncio.Task[AsyncSandbox]) -> None:
        try:
            sandbox = await launch
        except asyncio.CancelledError:
            self.give_back()
            raise
        except Exception as error:
            self.give_back()
            self._record("late_start_failed", f"nobody waited any more: {error!r}")
        else:
            await self._close(sandbox, "a late start", keep_slot=False)

    def end(self, sandbox: AsyncSandbox, id: str, keep_slot: bool = False) -> asyncio.Task:
        """Ends a machine in the background. keep_slot: it stays reserved, for another launch."""
        return self._spawn(self._close(sandbox, id, keep_slot))

    async def _close(self, sandbox: AsyncSandbox, id: str, keep_slot: bool) -> None:
        seconds = self._options.close_seconds
        try:
            async with asyncio.timeout(seconds):
                await sandbox.close()
        except TimeoutError:
            self._record("sandbox_left", f"did not end within {seconds:g} s", sandbox=id)
        except Exception as error:  # whatever it is, the other sandboxes are not to suffer from it
            self._record("sandbox_left", f"could not be ended: {error!r}", sandbox=id)
        finally:
            if not keep_slot:
                self.give_back()

    async def reap(self) -> None:
        """Removes what dead processes left behind. What goes wrong is recorded."""
        try:
            async with asyncio.timeout(REAP_S):
                count = await asyncio.to_thread(self._runtime.reap)
        except Exception as error:  # a daemon that does not answer now may answer next time
            self._record("reap_failed", repr(error))
            return
        if count:
            self._record("sandboxes_reaped", f"{count} of dead owners", count=count)

    async def settle(self) -> None:
        """Waits, within close_seconds, for what ends in the background; then gives it up."""
        if self._background:
            await asyncio.wait(self._background, timeout=self._options.close_seconds)
        for task in self._background:
            task.cancel()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

"""Starts and ends machines, with limits on their number and on the time that each step takes.

This is the only file of the pool that uses the runtime.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from ale_jax.sandbox.api import SandboxError, SandboxStartError
from ale_jax.sandbox.async_sandbox import AsyncSandbox
from ale_jax.sandbox.pool.accounting import Room, total
from ale_jax.sandbox.pool.api import Record
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.sandbox.spec import SandboxSpec


class Start(Protocol):
    """A start in progress. arrival: done when the sandbox runs; fails with the reason if it never
    will. starters: number of callers that wait for it. was_delivered: whether one of them has
    received it."""

    arrival: asyncio.Future[None]
    starters: int
    was_delivered: bool


S = TypeVar("S", bound=Start)


async def first_ready(starts: Sequence[S], count: int) -> list[S]:
    """Returns the first `count` sandboxes that run, in that order, and marks them as delivered.

    Errors: that of the failure which leaves fewer than `count`.
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
FILES_EACH, FILES_BESIDE = 4, 256  # a sandbox holds two or three; connections, logs, starts


def raise_file_limit(slots: int = 0) -> None:
    """Raises this process's limit of open files as far as it may.

    slots: sandboxes that this process will hold. Errors: ValueError if their files do not fit.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = FILES_BESIDE + FILES_EACH * slots
    if need > most:
        raise ValueError(
            f"{slots} slots need {need} open files, but the hard limit is {most} (ulimit -Hn):"
            " raise it (LimitNOFILE= in systemd, --ulimit nofile= in Docker), or use fewer slots"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Launches(Protocol):
    """What a pool needs from a runtime."""

    name: str

    async def prepare(self, spec: SandboxSpec) -> None: ...

    async def launch(
        self, spec: SandboxSpec, labels: Mapping[str, str], record: Record, snapshot: bytes
    ) -> AsyncSandbox:
        """record: is told which network access the sandbox was denied. snapshot: of a root on disk,
        with which it starts; empty: none."""

    async def forget(self, snapshot: bytes) -> None:
        """Frees what a snapshot holds outside of itself. Errors: SandboxError."""

    def reap(self) -> int: ...


class Launch(NamedTuple):
    """The arguments of a launch. snapshot: reads the snapshot that it starts from; empty: none."""

    spec: SandboxSpec
    labels: Mapping[str, str]
    record: Record
    snapshot: Callable[[], Awaitable[bytes]]


class Machines:
    """Slots, each with the memory and cpus that a spec asks for, and the machines in them.

    A slot is reserved before anything is awaited, and is free again when its occupant is gone: when
    `launch` has failed, or `end` is done. A launch that no caller waits for any longer is not
    cancelled, because the runtime could lose track of a half-created machine. It is awaited in the
    background, and its machine is ended.
    """

    def __init__(self, runtime: Launches, options: PoolOptions, record: Record):
        self.runtime_name = runtime.name
        self.capacity, self.taken = options.capacity(), Room()
        self._runtime, self._options, self._record = runtime, options, record
        self._permits = asyncio.Semaphore(options.creates_at_once)
        self._background: set[asyncio.Task] = set()

    @property
    def slots(self) -> int:
        return int(self.capacity.sandboxes)

    @property
    def free(self) -> int:
        """The number of free slots."""
        return int((self.capacity - self.taken).sandboxes)

    def has(self, room: Room) -> bool:
        return (self.taken + room).fits(self.capacity)

    def reserve(self, spec: SandboxSpec) -> bool:
        """Reserves a slot with the memory and cpus that `spec` asks for. False if there is none."""
        if not self.has(Room.of(spec)):
            return False
        self.taken += Room.of(spec)
        return True

    def exchange(self, old: Sequence[SandboxSpec], new: SandboxSpec) -> None:
        """Turns the room of sandboxes that were ended with `keep_slot` into that of another."""
        self.taken += Room.of(new) - total(old)
        assert self.taken.fits(self.capacity), (self.taken, self.capacity)

    def shortage(self, spec: SandboxSpec) -> str:
        """Says what is missing for `spec`. Call it only if it does not fit."""
        name, _, most = next((self.taken + Room.of(spec)).beyond(self.capacity))
        if name == "sandboxes":
            return f"all {most:g} slots are taken"
        asked, taken = getattr(Room.of(spec), name), getattr(self.taken, name)
        return f"{name} {asked:g} is more than is free: {taken:g} of {most:g} are taken"

    def give_back(self, spec: SandboxSpec, after: asyncio.Future | None = None) -> None:
        """Releases a reserved slot that was not used. after: ends its previous occupant."""
        if after is not None and not after.done():
            after.add_done_callback(lambda _: self.give_back(spec))
            return
        self.taken -= Room.of(spec)
        assert Room().fits(self.taken), self.taken

    async def prepare(self, spec: SandboxSpec) -> None:
        """Prepares what starts of `spec` need: builds its image. Errors: the runtime's."""
        await self._runtime.prepare(spec)

    async def launch(
        self,
        what: Launch,
        begins: Callable[[], None],
        after: asyncio.Future | None = None,
        pause: float = 0.0,
    ) -> AsyncSandbox:
        """Starts a machine in a reserved slot. Errors: SandboxStartError, and those of the runtime.

        begins: called when the launch has its permit. after: the task that ends the slot's previous
        occupant. pause: seconds to wait first.
        """
        try:
            await asyncio.sleep(pause)
            if after is not None:
                await asyncio.shield(after)
            await self._permits.acquire()
        except BaseException:
            self.give_back(what.spec, after)
            raise
        try:
            begins()
            launch = asyncio.get_running_loop().create_task(self._launch(what))
            return await self._bounded(launch, what.spec)
        finally:
            self._permits.release()

    async def _launch(self, what: Launch) -> AsyncSandbox:
        snapshot = await what.snapshot()
        return await self._runtime.launch(what.spec, what.labels, what.record, snapshot)

    async def _bounded(self, launch: asyncio.Task[AsyncSandbox], spec: SandboxSpec) -> AsyncSandbox:
        seconds = self._options.launch_seconds
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(launch)
        except TimeoutError as error:
            self._disown(launch, spec)
            raise SandboxStartError(f"the sandbox did not start within {seconds:g} s") from error
        except BaseException:
            self._disown(launch, spec)
            raise

    def _disown(self, launch: asyncio.Task[AsyncSandbox], spec: SandboxSpec) -> None:
        if launch.done() and (launch.cancelled() or launch.exception()):
            self.give_back(spec)
        else:
            self._spawn(self._end_late(launch, spec))

    async def _end_late(self, launch: asyncio.Task[AsyncSandbox], spec: SandboxSpec) -> None:
        try:
            sandbox = await launch
        except asyncio.CancelledError:
            self.give_back(spec)
            raise
        except Exception as error:
            self.give_back(spec)
            self._record("late_start_failed", f"no caller was waiting for it: {error!r}")
        else:
            await self._close(sandbox, "a late start", keep_slot=False)

    def forget(self, snapshot: bytes) -> None:
        """Frees, in the background, what a snapshot holds outside of itself."""
        self._spawn(self._forget(snapshot))

    async def _forget(self, snapshot: bytes) -> None:
        try:
            await self._runtime.forget(snapshot)
        except SandboxError as error:
            self._record("snapshot_left", str(error))

    def end(self, sandbox: AsyncSandbox, id: str, keep_slot: bool = False) -> asyncio.Task:
        """Ends a machine in the background. keep_slot: reserves its slot for another launch."""
        return self._spawn(self._close(sandbox, id, keep_slot))

    async def _close(self, sandbox: AsyncSandbox, id: str, keep_slot: bool) -> None:
        seconds = self._options.close_seconds
        try:
            async with asyncio.timeout(seconds):
                await sandbox.close()
        except TimeoutError:
            self._record("sandbox_left", f"did not end within {seconds:g} s", sandbox=id)
        except Exception as error:  # no failure here may affect the other sandboxes
            self._record("sandbox_left", f"could not be ended: {error!r}", sandbox=id)
        finally:
            if not keep_slot:
                self.give_back(sandbox.spec)

    async def reap(self) -> None:
        """Removes what dead processes left behind. Failures are recorded, not raised."""
        try:
            async with asyncio.timeout(REAP_S):
                count = await asyncio.to_thread(self._runtime.reap)
        except Exception as error:  # a daemon that does not answer now may answer next time
            self._record("reap_failed", repr(error))
            return
        if count:
            self._record("sandboxes_reaped", f"{count} left behind by dead processes", count=count)

    async def settle(self) -> None:
        """Waits up to close_seconds for the background tasks, then cancels them."""
        if self._background:
            await asyncio.wait(self._background, timeout=self._options.close_seconds)
        for task in self._background:
            task.cancel()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

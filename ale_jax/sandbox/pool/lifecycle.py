"""The life cycle of all sandboxes of a node: how they are started, lost, re-created and ended, and
how a call reaches its sandbox."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any

from ale_jax.sandbox.api import SandboxError, SandboxLost, SandboxStartError
from ale_jax.sandbox.async_sandbox import AsyncSandbox
from ale_jax.sandbox.exchange import SandboxProcess
from ale_jax.sandbox.pool.accounting import Room, UsageLedger, owner_of, total
from ale_jax.sandbox.pool.api import Cause, Record, SandboxGone, StartRequest, State
from ale_jax.sandbox.pool.machines import Launch, Machines
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.sandbox.pool.pooled_sandbox import Heartbeat, PooledSandbox
from ale_jax.sandbox.pool.snapshots import SnapshotStore, SnapshotStores

MAX_REMEMBERED = 10_000
FIRST_PAUSE_S, LAST_PAUSE_S = 0.5, 8.0


class Lifecycle:
    """The sandboxes of a pool by id. Every sandbox that is begun ends exactly once: by `end`, by a
    start that failed, or by a loss. Its slot and its snapshot are then released.

    Methods that change a sandbox's state never await, so other tasks never see a half-finished
    change.
    """

    def __init__(
        self,
        machines: Machines,
        stores: SnapshotStores,
        options: PoolOptions,
        record: Record,
        clock: Callable[[], float],
    ):
        self.sandboxes: dict[str, PooledSandbox] = {}
        self.restarts = 0
        self.usage = UsageLedger()
        self._phases = itertools.count()
        self._machines, self._stores, self._options = machines, stores, options
        self._record, self._clock = record, clock
        self._ended: collections.deque[tuple[float, PooledSandbox]] = collections.deque()

    def begin(
        self,
        id: str,
        request: StartRequest,
        generation: int = 0,
        is_warm: bool = False,
        after: asyncio.Future | None = None,
    ) -> PooledSandbox:
        """Creates a sandbox and starts it in the background. The caller must have reserved a slot.

        after: the task that ends the slot's previous occupant. ValueError for a snapshot that does
        not exist; the slot is then given back.
        """
        self._assert_free(id)
        if request.snapshot:
            try:
                self._store_of(request).pin(request.snapshot)
            except ValueError:
                self._machines.give_back(request.spec, after)
                raise
        pooled = self.sandboxes[id] = PooledSandbox(id, request, self._clock, generation)
        pooled.is_warm = is_warm
        self._begin_start(pooled, after)
        return pooled

    def adopt(
        self, pooled: PooledSandbox, id: str, request: StartRequest, generation: int = 0
    ) -> None:
        """Turns a warm sandbox, ready or still starting, into the one that `request` asks for,
        under a new id.

        ValueError for a snapshot that does not exist; the sandbox then stays warm.
        """
        assert pooled.is_warm, pooled.id
        self._assert_free(id)
        if request.snapshot:
            self._store_of(request).pin(request.snapshot)
        del self.sandboxes[pooled.id]
        self.sandboxes[id] = pooled
        pooled.id, pooled.request, pooled.generation = id, request, generation
        pooled.is_warm = False
        if pooled.life.state is State.READY:
            pooled.expect()
            if request.snapshot:
                self._begin_start(pooled, None)
            else:
                self._started(pooled, "it was warm")

    def end(
        self, pooled: PooledSandbox, cause: Cause, detail: str = "", keep_slot: bool = False
    ) -> asyncio.Task | None:
        """Ends a sandbox, unless it has ended. Returns the task that is done when nothing of it is
        left.

        keep_slot: keeps the slot for another sandbox, which starts afterwards; only allowed while
        this one is up.
        """
        assert pooled.life.is_up or not keep_slot, pooled.life.state
        if not pooled.life.is_over and pooled.ending is None:
            pooled.to(State.STOPPING, detail, cause)
            pooled.starting.cancel()
            pooled.never_starts(pooled.gone())
            finish = self._finish(pooled, keep_slot)
            pooled.ending = asyncio.get_running_loop().create_task(finish)
            self._note("sandbox_ended", detail or str(cause), pooled, cause=str(cause))
        return pooled.ending

    def lose(self, pooled: PooledSandbox, detail: str) -> None:
        """Records that a sandbox died, and starts its next generation if it is to be re-created."""
        if not pooled.life.is_up:
            return
        self._note("sandbox_lost", detail, pooled)
        pooled.losses += 1
        pooled.to(State.FAILED, detail, Cause.LOST)
        again = pooled.request.recreate and pooled.losses <= self._options.max_losses
        old = self._end_machine(pooled, keep_slot=again)
        if not again:
            self._retire(pooled)
            return
        self.restarts += 1
        pooled.generation += 1
        pooled.to(State.PENDING, f"generation {pooled.generation}")
        pooled.expect()
        self._begin_start(pooled, old)

    def held(self, owner: str) -> Room:
        living = (each for each in self.sandboxes.values() if each.life.cause is None)
        requests = (pooled.request for pooled in living if not pooled.is_warm)
        return total(each.spec for each in requests if owner_of(each.labels) == owner)

    def forget(self) -> None:
        """Drops the sandboxes that ended long ago."""
        oldest = self._clock() - self._options.remember_seconds
        while self._ended and (self._ended[0][0] < oldest or len(self._ended) > MAX_REMEMBERED):
            _, pooled = self._ended.popleft()
            if self.sandboxes.get(pooled.id) is pooled:  # else its id is in use again
                del self.sandboxes[pooled.id]

    def _begin_start(self, pooled: PooledSandbox, after: asyncio.Future | None) -> None:
        pooled.start_began, pooled.after = False, after
        pooled.starting = asyncio.get_running_loop().create_task(self._start(pooled))

    async def _start(self, pooled: PooledSandbox) -> None:
        """Waits for a permit, the runtime and the snapshot's files; `end` cancels it."""
        pooled.start_began = True
        try:
            filled = await self._launch(pooled) if pooled.sandbox is None else ""
            if pooled.request.snapshot != filled and not pooled.is_warm:
                await self._fill(pooled)
        except Exception as error:  # every kind of failure must reach the waiting callers
            self._fail(pooled, error)
        else:
            self._started(pooled)

    async def _launch(self, pooled: PooledSandbox) -> str:
        """Returns the id of the snapshot that it started with; empty: none."""
        pause = 0.0
        if pooled.losses > 1:
            pause = min(FIRST_PAUSE_S * 2 ** (pooled.losses - 2), LAST_PAUSE_S)
        labels = {**pooled.request.labels, "node": self._options.name, "sandbox": pooled.id}

        def record(kind: str, detail: str, **fields: str | int | None) -> None:
            self._note(kind, detail, pooled, **fields)  # adopting a warm sandbox changes its id

        # Adopting a warm sandbox changes the request.
        spec, store = pooled.request.spec, self._store_of(pooled.request)
        filled = pooled.request.snapshot if spec.disk_mb else ""

        async def snapshot() -> bytes:
            return await store.get_reference(filled) if filled else b""

        pooled.sandbox = await self._machines.launch(
            Launch(spec, labels, record, snapshot),
            lambda: pooled.to(State.STARTING),
            pooled.after,
            pause,
        )
        pooled.heartbeat = Heartbeat(self._options, phase=next(self._phases))
        return filled

    async def _fill(self, pooled: PooledSandbox) -> None:
        if pooled.life.state is State.READY:
            pooled.to(State.STARTING, "restores a snapshot")
        owner, id = owner_of(pooled.request.labels), pooled.request.snapshot
        try:
            async with (
                self._stores.archive(owner, id) as content,
                asyncio.timeout(self._options.launch_seconds),
            ):
                await pooled.sandbox.restore(content)
        except TimeoutError as error:
            late = f"it took longer than {self._options.launch_seconds:g} s"
            raise SandboxStartError(f"cannot restore the snapshot: {late}") from error
        except SandboxError as error:
            raise SandboxStartError(f"cannot restore the snapshot: {error}") from error

    def _started(self, pooled: PooledSandbox, detail: str = "") -> None:
        pooled.started()
        kind = "sandbox_recreated" if pooled.generation else "sandbox_started"
        self._note("sandbox_warm" if pooled.is_warm else kind, detail, pooled)

    def _fail(self, pooled: PooledSandbox, error: Exception) -> None:
        """Handles a failed start. A sandbox that has run before is started again."""
        detail = str(error) or repr(error)
        self._note("sandbox_start_failed", detail, pooled)
        pooled.to(State.FAILED, detail, Cause.START_FAILED)
        again = 0 < pooled.losses < self._options.max_losses
        old = None
        if pooled.sandbox is not None:
            old = self._end_machine(pooled, keep_slot=again)
        elif again:  # the failed launch gave its slot back; no other task has run since
            again = self._machines.reserve(pooled.request.spec)
        if again:
            pooled.losses += 1
            pooled.to(State.PENDING, "starts again")
            self._begin_start(pooled, old)
        else:
            pooled.never_starts(error)
            self._retire(pooled)

    async def _finish(self, pooled: PooledSandbox, keep_slot: bool) -> None:
        await asyncio.wait([pooled.starting])
        if pooled.sandbox is not None:
            await self._end_machine(pooled, keep_slot)
        elif not pooled.start_began:
            # A task that is cancelled before its first step never runs, so it gave nothing back.
            self._machines.give_back(pooled.request.spec, pooled.after)
        pooled.to(State.STOPPED)
        self._retire(pooled)

    def _end_machine(self, pooled: PooledSandbox, keep_slot: bool) -> asyncio.Task:
        self.usage.note(owner_of(pooled.request.labels), pooled.usage)
        sandbox, pooled.sandbox, pooled.up_at = pooled.sandbox, None, None
        if pooled.heartbeat is not None:
            pooled.heartbeat.stop()
            pooled.heartbeat = None
        return self._machines.end(sandbox, pooled.id, keep_slot)

    def _store_of(self, request: StartRequest) -> SnapshotStore:
        return self._stores.of(owner_of(request.labels))

    def _assert_free(self, id: str) -> None:
        assert id not in self.sandboxes or self.sandboxes[id].life.is_over, id

    def _retire(self, pooled: PooledSandbox) -> None:
        if pooled.request.snapshot:
            self._store_of(pooled.request).unpin(pooled.request.snapshot)
        self._ended.append((self._clock(), pooled))

    def _note(
        self, kind: str, detail: str, pooled: PooledSandbox, **fields: str | int | None
    ) -> None:
        self._record(kind, detail, sandbox=pooled.id, generation=pooled.generation, **fields)


class Leases:
    """Gives calls access to the sandbox of an id."""

    def __init__(self, lifecycle: Lifecycle):
        self._lifecycle = lifecycle

    def known(self, id: str) -> PooledSandbox:
        """Returns the sandbox of that id, running or not. Errors: SandboxGone if the id is
        unknown."""
        if id not in self._lifecycle.sandboxes:
            raise SandboxGone(id, None)
        return self._lifecycle.sandboxes[id]

    async def _up(self, id: str) -> PooledSandbox:
        """Returns the running sandbox of that id; waits while it is being started or re-created."""
        while (pooled := self.known(id)).life.state is not State.RUNNING:
            if pooled.is_warm or pooled.life.cause is not None:
                raise pooled.gone()
            try:
                await asyncio.shield(pooled.arrival)
            except SandboxError as error:
                raise pooled.gone() from error
        return pooled

    @contextlib.asynccontextmanager
    async def of(self, id: str, generation: int | None) -> AsyncIterator[AsyncSandbox]:
        """Yields the sandbox for one call.

        Errors: SandboxLost also if the sandbox died during a call that returned: its result is not
        used. SandboxError if a reset has replaced the machine that was called.
        """
        pooled = await self._up(id)
        sandbox, current = pooled.sandbox, pooled.generation
        machine = sandbox.machine
        if generation not in (None, current):
            raise SandboxLost(f"generation {generation} is lost; the current one is {current}")
        with pooled.in_use():
            try:
                yield sandbox
            except SandboxLost as error:
                if pooled.sandbox is sandbox:
                    if sandbox.machine is not machine:
                        raise SandboxError("the sandbox was reset during the call") from error
                    self._lifecycle.lose(pooled, str(error))
                if pooled.life.cause in (None, Cause.LOST):
                    raise
                raise pooled.gone() from error
        if pooled.generation != current or pooled.life.cause is Cause.LOST:
            raise SandboxLost(f"generation {current} was lost during the call")
        pooled.losses = 0


KILL_S = 5.0
TERM = {"TERM": "xterm-256color"}


async def job_output(
    sandbox: AsyncSandbox, argv: Sequence[str] | str, stdin: bytes, arguments: dict[str, Any]
) -> AsyncGenerator[tuple[str, bytes | int], None]:
    """Runs a job and yields its output, finally ("exit", code).

    Ends when the job ends, or with SandboxLost when the sandbox dies. Closing the iterator kills
    the job.
    """
    job = sandbox.spawn(argv, **arguments)
    # Runs concurrently with the reading: a job may write a lot before it reads its input.
    feeder = asyncio.get_running_loop().create_task(_feed(job, stdin))
    has_ended = False
    try:
        while (piece := await job.receive()) is not None:
            yield piece
        code = await job.wait()
        has_ended = True
        yield "exit", code
    finally:
        feeder.cancel()
        if not has_ended:
            await _kill(job)


@contextlib.asynccontextmanager
async def job_on_terminal(
    sandbox: AsyncSandbox, command: str, rows: int, columns: int, user: str
) -> AsyncIterator[SandboxProcess]:
    """Runs a bash command on a terminal of its own, with 0 rows on pipes instead, and kills it at
    the end of the block."""
    size = (rows, columns) if rows else None
    job = sandbox.spawn(command, terminal=size, env=TERM if rows else None, user=user)
    try:
        yield job
    finally:
        await _kill(job)
        job.close_stdin()


async def _feed(job: SandboxProcess, stdin: bytes) -> None:
    with contextlib.suppress(SandboxLost):  # reading the output raises it, too
        await job.write(stdin)
        job.close_stdin()


async def _kill(job: SandboxProcess) -> None:
    # The job may have ended by itself or with its sandbox. A runner that does not answer is left to
    # the health check.
    with contextlib.suppress(SandboxError, TimeoutError):
        async with asyncio.timeout(KILL_S):
            await job.kill()
            await job.wait()

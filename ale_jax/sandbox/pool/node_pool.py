"""The sandboxes of one machine, in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.exchange import SandboxProcess
from ale_jax.sandbox.pool.accounting import Room, Usage, owner_of, total
from ale_jax.sandbox.pool.admission import Admission, Supervisor, WarmPools, numbered
from ale_jax.sandbox.pool.api import (
    METHODS,
    Cause,
    Events,
    NodeStatus,
    OwnerLimits,
    Record,
    SnapshotInfo,
    StartRequest,
    Status,
)
from ale_jax.sandbox.pool.events import EventRing, NodeLoad, log_event, steady_clock
from ale_jax.sandbox.pool.lifecycle import Leases, Lifecycle, job_on_terminal, job_output
from ale_jax.sandbox.pool.machines import Launches, Machines, first_ready, raise_file_limit
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.sandbox.pool.pooled_sandbox import PooledSandbox
from ale_jax.sandbox.pool.snapshots import SnapshotStores
from ale_jax.sandbox.ports import PortConnection
from ale_jax.sandbox.relay import Tunnel
from ale_jax.sandbox.spec import SandboxSpec

JOB_ARGUMENTS = ("cwd", "env", "timeout", "terminal", "user")


class NodePool:
    """A `SandboxPool` over one runtime. Use it in an `async with` block, or call `open`."""

    def __init__(
        self,
        runtime: Launches,
        options: PoolOptions | None = None,
        record: Record = log_event,
        clock: Callable[[], float] | None = None,
    ):
        self._options = options = options or PoolOptions()
        self._clock = clock or steady_clock()
        self._events = EventRing(self._clock, record)
        record = self._events.record
        self._machines = Machines(runtime, options, record)
        self._stores = SnapshotStores(
            options.snapshot_directory, options.snapshot_mb << 20, record, self._machines.forget
        )
        self._lifecycle = Lifecycle(self._machines, self._stores, options, record, self._clock)
        at_once = max(1, options.creates_at_once // 2)
        self._warm = WarmPools(self._lifecycle, self._machines, at_once, self._clock)
        self._admission = Admission(self._lifecycle, self._machines, self._warm, options.name)
        self._supervisor = Supervisor(self._lifecycle, self._machines, self._warm, options, record)
        self._leases = Leases(self._lifecycle)
        self._load = NodeLoad()
        self._closing: asyncio.Task | None = None

    async def open(self) -> None:
        """Removes what dead owners left behind, and starts the supervisor.

        Errors: ValueError if this process may not hold as many files as its slots need.
        """
        raise_file_limit(self._options.slots)
        await self._machines.reap()
        self._supervisor.start()

    async def __aenter__(self) -> NodePool:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(
        self, request: StartRequest, limits: OwnerLimits | None = None, generation: int = 0
    ) -> Status:
        """generation: that of a sandbox which was lost elsewhere and is re-created here."""
        self._check_open()
        self._check([request], limits)
        pooled = self._admission.admit(request, generation)
        try:
            await first_ready([pooled], 1)
        except asyncio.CancelledError:
            self._give_up([pooled], Cause.STOPPED, "the caller stopped waiting for its start")
            raise
        return self._status(pooled)

    async def start_many(
        self, request: StartRequest, count: int, spare: int = 0, limits: OwnerLimits | None = None
    ) -> Sequence[Status]:
        if count < 1 or spare < 0:
            raise ValueError(f"count {count} must be at least 1, and spare {spare} at least 0")
        self._check_open()
        requests = numbered(request, count + spare)
        self._check(requests, limits)
        sandboxes: list[PooledSandbox] = []
        try:
            self._admission.admit_many(requests, count, sandboxes)
            won = await first_ready(sandboxes, count)
        except BaseException:
            self._give_up(sandboxes, Cause.STOPPED, "others of its request could not be started")
            raise
        self._give_up(sandboxes, Cause.REDUNDANT, "others of its request were ready first")
        return [self._status(pooled) for pooled in won]

    async def stop(self, id: str, cause: Cause = Cause.STOPPED) -> None:
        """Returns when the sandbox has ended. Does nothing if it has ended already."""
        pooled = self._leases.known(id)
        if ending := self._lifecycle.end(pooled, cause):
            await asyncio.shield(ending)

    async def renew(self, id: str, seconds: float) -> Status:
        pooled = self._leases.known(id)
        if pooled.life.cause is not None:
            raise pooled.gone()
        pooled.renew(seconds)
        return self._status(pooled)

    async def status(self, id: str) -> Status:
        return self._status(self._leases.known(id))

    async def statuses(self) -> Sequence[Status]:
        return [self._status(pooled) for pooled in self._lifecycle.sandboxes.values()]

    def living(self) -> frozenset[str]:
        """Ids of the sandboxes that have not ended, including warm ones."""
        sandboxes = self._lifecycle.sandboxes.items()
        return frozenset(id for id, pooled in sandboxes if pooled.life.cause is None)

    async def held(self, owner: str) -> Room:
        return self._lifecycle.held(owner)

    def free(self) -> Room:
        """Warm sandboxes count as free, as they make room."""
        return self._machines.capacity - self._machines.taken + self._warm.room

    async def usage(self) -> Mapping[str, Usage]:
        running = self._lifecycle.sandboxes.values()
        pairs = ((owner_of(each.request.labels), each.usage) for each in running)
        return self._lifecycle.usage.with_running(pairs)

    async def call(
        self, id: str, method: str, *, generation: int | None = None, **arguments: Any
    ) -> Any:
        if method not in METHODS:
            raise ValueError(f"method {method!r:.80}: choose one of {', '.join(METHODS)}")
        async with self._leases.of(id, generation) as sandbox:
            try:
                answer = getattr(sandbox, method)(**arguments)
            except TypeError as error:
                raise ValueError(f"arguments of {method!r}: {error}") from error
            return await answer

    async def stream(
        self,
        id: str,
        argv: Sequence[str] | str,
        *,
        generation: int | None = None,
        stdin: bytes = b"",
        **arguments: Any,
    ) -> AsyncGenerator[tuple[str, bytes | int], None]:
        if unknown := arguments.keys() - set(JOB_ARGUMENTS):
            raise ValueError(
                f"arguments {', '.join(unknown)}: choose among {', '.join(JOB_ARGUMENTS)}"
            )
        async with self._leases.of(id, generation) as sandbox:
            output = job_output(sandbox, argv, stdin, arguments)
            async with contextlib.aclosing(output):
                async for piece in output:
                    yield piece

    @contextlib.asynccontextmanager
    async def terminal(
        self, id: str, command: str, rows: int, columns: int, user: str = ""
    ) -> AsyncIterator[SandboxProcess]:
        """Runs a bash command on a terminal of its own; it ends with the block."""
        async with (
            self._leases.of(id, None) as sandbox,
            job_on_terminal(sandbox, command, rows, columns, user) as job,
        ):
            yield job

    @contextlib.asynccontextmanager
    async def relay(self, id: str, port: int) -> AsyncIterator[Tunnel]:
        """As `AsyncSandbox.tunnel`. A call that lasts as long as the block."""
        async with self._leases.of(id, None) as sandbox, sandbox.tunnel(port) as tunnel:
            yield tunnel

    @contextlib.asynccontextmanager
    async def connect(self, id: str, port: int) -> AsyncIterator[PortConnection]:
        """As `AsyncSandbox.connected`. A call that lasts as long as the block."""
        async with self._leases.of(id, None) as sandbox, sandbox.connected(port) as connection:
            yield connection

    async def snapshot(self, id: str, max_bytes: int | None = None) -> SnapshotInfo:
        request = self._leases.known(id).request
        owner = owner_of(request.labels)
        limit = self._stores.max_bytes if max_bytes is None else max_bytes
        memory = self._stores.memory(owner, min(limit, request.spec.archive_bytes))
        async with contextlib.AsyncExitStack() as held:
            # Inside the lease, which may wait for a start, which may wait for memory.
            async with self._leases.of(id, None) as sandbox:
                await held.enter_async_context(memory)
                content = await sandbox.snapshot(max_bytes=limit)
            return await self.put_snapshot(content, owner, limit)

    async def put_snapshot(
        self, content: bytes, owner: str = "", max_bytes: int | None = None
    ) -> SnapshotInfo:
        """Stores what another pool's `get_snapshot` returned. SandboxError if there is no room."""
        return await self._stores.of(owner).put(content, self._clock(), max_bytes)

    async def get_snapshot(self, id: str, owner: str = "") -> bytes:
        """Returns a snapshot's archive. ValueError if its owner has none with that id."""
        return await self._stores.of(owner).get(id)

    async def restore(self, id: str, snapshot: str) -> None:
        owner = owner_of(self._leases.known(id).request.labels)
        async with (
            self._leases.of(id, None) as sandbox,
            self._stores.archive(owner, snapshot) as content,
        ):
            await sandbox.restore(content)

    async def fork(
        self, id: str, count: int, max_bytes: int | None = None, limits: OwnerLimits | None = None
    ) -> Sequence[Status]:
        request = dataclasses.replace(self._leases.known(id).request, id="")
        self._check(numbered(request, count), limits)  # a snapshot in vain takes time and space
        info = await self.snapshot(id, max_bytes)
        request = dataclasses.replace(request, snapshot=info.id)
        return await self.start_many(request, count, limits=limits)

    async def warm(self, spec: SandboxSpec, count: int) -> None:
        if not 0 <= count <= self._options.slots:
            raise ValueError(f"count {count} must be from 0 to {self._options.slots} (slots)")
        if count:
            await self._machines.prepare(spec)
        self._check_open()
        self._warm.keep(spec, count)

    async def nodes(self) -> Sequence[NodeStatus]:
        used, memory = self._load.memory()
        capacity = self._machines.capacity
        reserved = self._machines.taken - self._warm.room
        status = NodeStatus(
            node=self._options.name,
            alive=self._closing is None and self._supervisor.fault is None,
            slots=self._machines.slots,
            used=self._machines.slots - self._machines.free,
            ready=self._warm.ready,
            restarts=self._lifecycle.restarts,
            cpu_percent=self._load.cpu_percent(),
            memory_bytes=used,
            memory_limit_bytes=memory,
            memory_capacity_mb=int(capacity.memory_mb),
            memory_reserved_mb=int(reserved.memory_mb),
            cpus_capacity=capacity.cpus,
            cpus_reserved=reserved.cpus,
        )
        return [status]

    async def events_after(self, number: int) -> Events:
        return self._events.after(number)

    async def close(self) -> None:
        """May be called repeatedly and concurrently; each call returns when all has ended."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._supervisor.stop()
        for pooled in list(self._lifecycle.sandboxes.values()):
            self._lifecycle.end(pooled, Cause.SHUTDOWN)
        if endings := [m.ending for m in self._lifecycle.sandboxes.values() if m.ending]:
            await asyncio.wait(endings)  # each is bounded
        await self._machines.settle()
        await self._machines.reap()
        self._stores.close()

    def _check(self, requests: Sequence[StartRequest], limits: OwnerLimits | None) -> None:
        """Errors: those of `OwnerLimits.check`. The requests have one owner."""
        new = [each for each in requests if self._admission.is_new(each.id)]
        if new and limits is not None:
            held = self._lifecycle.held(owner_of(new[0].labels))
            limits.check(held, self.free(), total(each.spec for each in new))

    def _give_up(self, sandboxes: Sequence[PooledSandbox], cause: Cause, detail: str) -> None:
        """Ends the sandboxes that were not delivered and that no caller waits for."""
        for pooled in sandboxes:
            if not pooled.was_delivered and not pooled.starters:
                self._lifecycle.end(pooled, cause, detail)

    def _check_open(self) -> None:
        if self._closing is not None:
            raise SandboxStartError("the pool is closed")
        if fault := self._supervisor.fault:
            raise SandboxStartError(f"the pool is out of order: {fault!r}") from fault

    def _status(self, pooled: PooledSandbox) -> Status:
        return pooled.status(self._options.name, self._machines.runtime_name)

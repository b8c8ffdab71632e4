"""The Ray actor that runs a node's pool of sandboxes."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Callable
from typing import Any

from ale_jax.sandbox.exchange import SandboxProcess
from ale_jax.sandbox.pool.api import NodeStatus, PoolEvent
from ale_jax.sandbox.pool.machines import Launches
from ale_jax.sandbox.pool.node_pool import NodePool
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.sandbox.relay import Tunnel


@dataclasses.dataclass(frozen=True)
class NodeReport:
    """A node's report. living: ids of the sandboxes that have not ended. events: the pool's events
    that were requested. asked_at: time of the request, on the caller's clock."""

    status: NodeStatus
    living: frozenset[str]
    events: tuple[PoolEvent, ...]
    asked_at: float = 0.0


class NodeActor:
    """A `NodePool` for callers in other processes."""

    def __init__(self, make_runtime: Callable[[], Launches], options: PoolOptions):
        self._make_runtime, self._options = make_runtime, options
        self._terminals: dict[str, SandboxProcess | Tunnel] = {}

    async def open(self) -> None:
        runtime = await asyncio.to_thread(self._make_runtime)
        self._pool = NodePool(runtime, self._options)
        await self._pool.open()

    async def do(self, method: str, /, *arguments: Any, **named: Any) -> Any:
        """Calls one of the pool's methods."""
        return await getattr(self._pool, method)(*arguments, **named)

    async def stream(
        self, *arguments: Any, **named: Any
    ) -> AsyncGenerator[tuple[str, bytes | int], None]:
        output = self._pool.stream(*arguments, **named)
        try:
            async for piece in output:
                yield piece
        finally:
            await output.aclose()

    async def converse(
        self, key: str, method: str, *arguments: Any
    ) -> AsyncGenerator[tuple[str, bytes | int], None]:
        """Holds a conversation with a sandbox. method: the pool's terminal, relay or connect.

        Yields ("open", b"") once `key` accepts input, then the output, then ("exit", code).
        """
        async with getattr(self._pool, method)(*arguments) as job:
            self._terminals[key] = job
            try:
                yield "open", b""
                while (piece := await job.receive()) is not None:
                    yield piece
                yield "exit", await job.wait()
            finally:
                del self._terminals[key]

    async def type_into(self, key: str, data: bytes) -> None:
        """Sends input to a terminal or tunnel. Input to one that has ended is dropped."""
        if job := self._terminals.get(key):
            await job.write(data)

    async def resize(self, key: str, rows: int, columns: int) -> None:
        if job := self._terminals.get(key):
            await job.resize(rows, columns)

    async def report(self, after: int, held_seconds: float) -> NodeReport:
        """Returns the node's report. after: number of the last event that the caller knows.
        held_seconds: delay before the answer."""
        await asyncio.sleep(held_seconds)
        (status,) = await self._pool.nodes()
        events = (await self._pool.events_after(after)).events
        return NodeReport(status, self._pool.living(), events)

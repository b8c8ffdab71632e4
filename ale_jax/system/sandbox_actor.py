"""The Ray actor in which a node's pool of sandboxes lives."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any

from ale_jax.sandbox.pool.api import NodeStatus
from ale_jax.sandbox.pool.machines import Launches
from ale_jax.sandbox.pool.node_pool import NodePool
from ale_jax.sandbox.pool.options import PoolOptions

MAX_EVENTS = 1000


@dataclasses.dataclass(frozen=True)
class Report:
    """status: the node's. living: ids of the sandboxes that have not ended. asked_at: by the clock
    of who asked. events: (kind, detail, fields) since the report before."""

    status: NodeStatus
    living: frozenset[str]
    events: tuple[tuple[str, str, dict[str, Any]], ...]
    asked_at: float = 0.0


class NodeActor:
    """A `NodePool` for callers in other processes."""

    def __init__(self, make_runtime: Callable[[], Launches], options: PoolOptions):
        self._make_runtime, self._options = make_runtime, options
        self._events: collections.deque = collections.deque(maxlen=MAX_EVENTS)

    async def open(self) -> None:
        runtime = await asyncio.to_thread(self._make_runtime)
        self._pool = NodePool(runtime, self._options, self._note)
        await self._pool.open()

    async def do(self, method: str, /, *arguments: Any, **named: Any) -> Any:
        """One of the pool's methods."""
        return await getattr(self._pool, method)(*arguments, **named)

    async def stream(self, *arguments: Any, **named: Any) -> AsyncIterator[tuple[str, bytes | int]]:
        output = self._pool.stream(*arguments, **named)
        try:
            async for piece in output:
                yield piece
        finally:
            await output.aclose()

    async def report(self) -> Report:
        events = tuple(self._events)
        self._events.clear()
        (status,), members = await self._pool.nodes(), await self._pool.statuses()
        living = frozenset(each.id for each in members if each.cause is None)
        return Report(status, living, events)

    def _note(self, kind: str, detail: str, **fields: Any) -> None:
        self._events.append((kind, detail, fields))

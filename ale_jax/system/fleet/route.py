"""One sandbox of a cluster: the node that it runs on, its status, and its interactive terminals."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from ale_jax.sandbox.pool.accounting import new_id
from ale_jax.sandbox.pool.api import Cause, Change, StartRequest, State, Status
from ale_jax.system.fleet.node import Node


@dataclasses.dataclass(eq=False)
class Route:
    """Where a sandbox is.

    arrival: done when the sandbox is on its node, or has failed with the reason. settled_at: time
    of arrival. generation: the highest that a caller was told. starters: callers of `start` that
    are waiting. was_delivered: whether one of them has received it. unwanted: the cause with which
    it will be ended, because no caller needs it any more. cause: why it has ended, at ended_at.
    last: its last known status. term: since when (seconds since the epoch) and for how many seconds
    it may live, once that is not simply what was requested from its start; 0: without a deadline.
    """

    request: StartRequest
    arrival: asyncio.Future[None]
    last: Status
    settled_at: float = 0.0
    generation: int = 0
    node: Node | None = None
    starters: int = 0
    was_delivered: bool = False
    unwanted: Cause | None = None
    cause: Cause | None = None
    ended_at: float = 0.0
    term: tuple[float, float] | None = None

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def home(self) -> Node:
        """The node of a sandbox that has arrived and is not over."""
        assert self.node is not None, f"sandbox {self.id} is on no node"
        return self.node

    @property
    def is_over(self) -> bool:
        return self.arrival.done() and self.node is None

    def told(self, status: Status) -> Status:
        self.last, self.generation = status, max(self.generation, status.generation)
        return status

    def note(self, state: State, detail: str, cause: Cause | None = None) -> None:
        """Adds a change of state that no node reports."""
        history = (*self.last.history, Change(time.time(), state, detail))
        self.last = dataclasses.replace(
            self.last,
            state=state,
            cause=cause,
            generation=self.generation,
            history=history,
            busy=0,
            stats=None,
        )

    def renew(self, seconds: float) -> None:
        """Sets the deadline that a restart elsewhere keeps; see `SandboxPool.renew`."""
        self.term = time.time(), seconds

    def keep_deadline(self) -> None:
        """Makes a restart end at the same time as before."""
        self.term = self.term or (self.last.started_at, self.request.deadline_seconds)

    def to_place(self) -> StartRequest:
        """Returns the request with what is left of its term. A fork begins with the request
        itself."""
        if self.term is None:
            return self.request
        since, seconds = self.term
        left = max(since + seconds - time.time(), 0.001) if seconds else 0.0
        return dataclasses.replace(self.request, deadline_seconds=left)

    def end(self, cause: Cause | None) -> None:
        self.node, self.cause, self.ended_at = None, cause, time.monotonic()

    def fail(self, error: Exception) -> None:
        self.arrival.set_exception(error)
        self.arrival.exception()  # marks it as retrieved, since there may be no waiter


def begin(request: StartRequest) -> Route:
    """Returns the route of a new sandbox, whose node is not known yet."""
    now = time.time()
    status = Status(
        id=request.id,
        node="",
        runtime="",
        state=State.PENDING,
        cause=None,
        generation=0,
        busy=0,
        started_at=now,
        used_at=now,
        spec=request.spec,
        labels=request.labels,
        history=(Change(now, State.PENDING, ""),),
    )
    return Route(request, new_future(), status)


def new_future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


class FarTerminal:
    """The service's `TerminalProcess`, or what has its methods, by calls to the sandbox's node."""

    def __init__(self, node: Node, key: str, pieces: AsyncGenerator[tuple[str, bytes | int], None]):
        self._node, self._key, self._pieces = node, key, pieces
        self._exit_code: int | None = None

    async def receive(self) -> tuple[str, bytes] | None:
        kind, content = await anext(self._pieces)
        if isinstance(content, int):  # the last piece, ("exit", code)
            self._exit_code = content
            return None
        return kind, content

    async def write(self, data: bytes) -> None:
        """Waits while the command does not read, as a pool in this process does."""
        await self._node.tell(None, "type_into", self._key, data)

    async def resize(self, rows: int, columns: int) -> None:
        await self._node.tell(None, "resize", self._key, rows, columns)

    async def wait(self) -> int:
        """Returns the exit code. Call it only after `receive` has returned None."""
        assert self._exit_code is not None
        return self._exit_code


@contextlib.asynccontextmanager
async def converse(node: Node, method: str, *arguments: Any) -> AsyncIterator[FarTerminal]:
    """Opens what the pool's `method` opens, until the end of the block. Errors: the pool's,
    NodeLost."""
    key = new_id({})
    pieces = node.stream("converse", key, method, *arguments)
    async with contextlib.aclosing(pieces):
        await anext(pieces)  # it is open
        yield FarTerminal(node, key, pieces)

"""Sandboxes on all nodes of a Ray cluster: a pool on every node, and a route to each sandbox."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.pool.accounting import Room, Usage, owner_of, total
from ale_jax.sandbox.pool.admission import numbered
from ale_jax.sandbox.pool.api import (
    Cause,
    Events,
    NodeStatus,
    OwnerLimits,
    Record,
    SandboxGone,
    SnapshotInfo,
    StartRequest,
    Status,
)
from ale_jax.sandbox.pool.events import EventRing, log_event, steady_clock
from ale_jax.sandbox.pool.machines import Launches, first_ready
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.system.fleet.node import NodeLost
from ale_jax.system.fleet.nodes import ASK_S, Nodes
from ale_jax.system.fleet.route import FarTerminal, Route, converse
from ale_jax.system.fleet.routes import Routes

SILENT_S = 5.0


class Fleet:
    """A `SandboxPool` over all nodes of the Ray cluster that this process has joined.

    Nodes that join the cluster later are used as well. Sandboxes of a lost node have ended
    (NODE_LOST) or, with `recreate`, are started on another node.

    make_runtime: called once on every node. options: of each node's pool, except for its name.
    silent_seconds: time without an answer after which a node counts as lost.
    """

    def __init__(
        self,
        make_runtime: Callable[[], Launches],
        options: PoolOptions | None = None,
        record: Record = log_event,
        silent_seconds: float = SILENT_S,
    ):
        options = options or PoolOptions()
        self._events = EventRing(steady_clock(), record)
        self._nodes = Nodes(make_runtime, options, self._events.record, silent_seconds)
        self._routes = Routes(self._nodes, options, self._events.record)

    async def open(self) -> None:
        """Returns when the nodes of the cluster have joined. SandboxStartError if none could."""
        await self._nodes.open()

    async def __aenter__(self) -> Fleet:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self, request: StartRequest, limits: OwnerLimits | None = None) -> Status:
        self._check([request], limits)
        route = self._routes.route_for(request)
        if route.was_delivered:
            return await self.status((await self._routes.settled(route.id)).id)
        try:
            await first_ready([route], 1)
        except asyncio.CancelledError:
            self._give_up([route], Cause.STOPPED)
            raise
        return route.last

    async def start_many(
        self, request: StartRequest, count: int, spare: int = 0, limits: OwnerLimits | None = None
    ) -> Sequence[Status]:
        if count < 1 or spare < 0:
            raise ValueError(f"count {count} must be at least 1, and spare {spare} at least 0")
        requests, routes = numbered(request, count + spare), []
        self._check(requests, limits)
        try:
            for number, each in enumerate(requests, 1):
                try:
                    routes.append(self._routes.route_for(each))
                except SandboxGone:  # an earlier call with the same id ended it as redundant
                    if len(routes) + len(requests) - number < count:
                        raise
            won = await first_ready(routes, count)
        except BaseException:
            self._give_up(routes, Cause.STOPPED)
            raise
        self._give_up(routes, Cause.REDUNDANT)
        return [route.last for route in won]

    async def stop(self, id: str) -> None:
        """Returns when the sandbox has ended; first waits for its start if it is still starting."""
        if not self._routes.route(id).is_over:
            await self._routes.end(await self._routes.settled(id), Cause.STOPPED)

    async def status(self, id: str) -> Status:
        route = self._routes.route(id)
        if route.node is None:
            return route.last
        return route.told(await self._routes.ask(route, ASK_S, "status", id))

    async def renew(self, id: str, seconds: float) -> Status:
        route = await self._routes.settled(id)
        status = route.told(await self._routes.ask(route, ASK_S, "renew", id, seconds))
        route.renew(seconds)
        return status

    async def held(self, owner: str) -> Room:
        return self._routes.held(owner)

    def free(self) -> Room:
        """Returns what is free on all nodes together, after the starts that no node was given
        yet."""
        free = sum((node.capacity - node.taken for node in self._nodes.up()), Room())
        return free - self._routes.unplaced

    async def usage(self) -> Mapping[str, Usage]:
        asked = [node.ask(ASK_S, "usage") for node in self._nodes.up()]
        totals: collections.defaultdict[str, Usage] = collections.defaultdict(Usage)
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, SandboxError):
                continue  # the task that follows the node's reports records its loss
            if isinstance(answer, BaseException):
                raise answer
            for owner, usage in answer.items():
                totals[owner] += usage
        return totals

    async def statuses(self) -> Sequence[Status]:
        """Returns the statuses on all nodes that answer, and of sandboxes that are on no node
        because they are still starting, or have ended."""
        elsewhere = (route.last for route in self._routes.routes.values() if route.node is None)
        found = {status.id: status for status in elsewhere}
        asked = [node.ask(ASK_S, "statuses") for node in self._nodes.up()]
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, SandboxError):
                continue  # the task that follows the node's reports records its loss
            if isinstance(answer, BaseException):
                raise answer
            for status in answer:
                found[status.id] = self._routes.noted(status)
        return list(found.values())

    async def call(
        self, id: str, method: str, *, generation: int | None = None, **arguments: Any
    ) -> Any:
        route = await self._routes.settled(id)
        times = (
            arguments.get("timeout"),
            arguments.get("seconds"),
            route.request.spec.command_seconds,
        )
        seconds = ASK_S + max(each for each in times if each is not None)
        return await self._routes.ask(
            route, seconds, "call", id, method, generation=generation, **arguments
        )

    async def stream(
        self, id: str, argv: Sequence[str] | str, **arguments: Any
    ) -> AsyncGenerator[tuple[str, bytes | int], None]:
        route = await self._routes.settled(id)
        pieces = route.home.stream("stream", id, argv, **arguments)
        async with contextlib.aclosing(pieces):
            try:
                async for piece in pieces:
                    yield piece
            except NodeLost as error:
                raise self._routes.departure(route, error) from error

    def terminal(
        self, id: str, command: str, rows: int, columns: int, user: str = ""
    ) -> AbstractAsyncContextManager[FarTerminal]:
        return self._conversation("terminal", id, command, rows, columns, user)

    def relay(self, id: str, port: int) -> AbstractAsyncContextManager[FarTerminal]:
        return self._conversation("relay", id, port)

    def connect(self, id: str, port: int) -> AbstractAsyncContextManager[FarTerminal]:
        return self._conversation("connect", id, port)

    @contextlib.asynccontextmanager
    async def _conversation(
        self, method: str, id: str, *arguments: Any
    ) -> AsyncIterator[FarTerminal]:
        route = await self._routes.settled(id)
        try:
            async with converse(route.home, method, id, *arguments) as terminal:
                yield terminal
        except NodeLost as error:
            raise self._routes.departure(route, error) from error

    async def snapshot(self, id: str, max_bytes: int | None = None) -> SnapshotInfo:
        route = await self._routes.settled(id)
        node = route.home
        info = await self._routes.ask(route, ASK_S, "snapshot", id, max_bytes)
        self._routes.copies.note(info.id, owner_of(route.request.labels), node)
        return info

    async def restore(self, id: str, snapshot: str) -> None:
        route = await self._routes.settled(id)
        await self._routes.copies.bring(snapshot, owner_of(route.request.labels), route.home)
        await self._routes.ask(route, ASK_S, "restore", id, snapshot)

    async def fork(
        self, id: str, count: int, max_bytes: int | None = None, limits: OwnerLimits | None = None
    ) -> Sequence[Status]:
        request = dataclasses.replace(self._routes.route(id).request, id="")
        self._check(numbered(request, count), limits)  # a snapshot in vain takes time and space
        info = await self.snapshot(id, max_bytes)
        request = dataclasses.replace(request, snapshot=info.id)
        return await self.start_many(request, count, limits=limits)

    async def warm(self, spec: SandboxSpec, count: int) -> None:
        await self._nodes.keep_warm(spec, count)

    async def nodes(self) -> Sequence[NodeStatus]:
        return [node.last.status for node in self._nodes.all.values() if node.last is not None]

    async def events_after(self, number: int) -> Events:
        """Returns the events after a number. Those of the nodes are included as they arrive with
        the nodes' reports."""
        return self._events.after(number)

    async def close(self) -> None:
        await self._routes.close()

    def _check(self, requests: Sequence[StartRequest], limits: OwnerLimits | None) -> None:
        """Errors: those of `OwnerLimits.check`. The requests have one owner."""
        new = [each for each in requests if each.id not in self._routes.routes]
        if new and limits is not None:
            held = self._routes.held(owner_of(new[0].labels))
            limits.check(held, self.free(), total(each.spec for each in new))

    def _give_up(self, routes: Sequence[Route], cause: Cause) -> None:
        """Ends those that no caller has received or is waiting for."""
        for route in routes:
            if not route.was_delivered and not route.starters:
                self._routes.unwant(route, cause)

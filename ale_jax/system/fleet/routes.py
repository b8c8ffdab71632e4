"""Which sandbox is on which node of the cluster, and what happens to it when the node is lost."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections import defaultdict, deque
from typing import Any

from ale_jax.sandbox.api import SandboxError, SandboxLost, SandboxStartError
from ale_jax.sandbox.pool.accounting import Room, new_id, owner_of, total
from ale_jax.sandbox.pool.api import (
    Cause,
    PoolFull,
    Record,
    SandboxGone,
    StartRequest,
    State,
    Status,
)
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.system.fleet.actor import NodeReport
from ale_jax.system.fleet.node import Node, NodeLost
from ale_jax.system.fleet.nodes import ASK_S, Background, Copies, Nodes
from ale_jax.system.fleet.route import Route, begin, new_future

FULL_ONES_ASKED = 4
START_S = 600.0  # a start may have to wait for many other starts on its node
MOVE_S, MOVE_PAUSE_S = 60.0, 0.5


class Routes:
    """The routes to all sandboxes of the cluster."""

    def __init__(self, nodes: Nodes, options: PoolOptions, record: Record):
        self.routes: dict[str, Route] = {}
        # Each report and each loss concerns one node, and there may be many thousand routes.
        self._on: defaultdict[Node, dict[str, Route]] = defaultdict(dict)
        self._ended: deque[Route] = deque()  # in the order of their ends
        self.copies = Copies(nodes.lose)
        self._nodes, self._options, self._record = nodes, options, record
        self._background = Background(record)
        self._is_closed = False
        self.unplaced = Room()  # of new routes whose background task has not begun
        nodes.on_report, nodes.on_loss = self._note_report, self._note_loss

    async def close(self) -> None:
        """Closes the nodes, and fails all starts that are waiting."""
        self._is_closed = True
        self._background.cancel()
        await self._nodes.close()
        for route in self.routes.values():
            if not route.arrival.done():
                route.fail(SandboxGone(route.id, Cause.SHUTDOWN))

    def route_for(self, request: StartRequest) -> Route:
        if self._is_closed:
            raise SandboxStartError("the fleet is closed")
        request = dataclasses.replace(request, id=request.id or new_id(request.labels))
        if route := self.routes.get(request.id):
            asked, had = request, route.request
            if (asked.spec, asked.snapshot) != (had.spec, had.snapshot):
                raise ValueError("its id is that of another sandbox: choose another id")
            if route.is_over:
                raise SandboxGone(route.id, route.cause)
            return route
        route = self.routes[request.id] = begin(request)
        self.unplaced += Room.of(request.spec)
        self._background.spawn(self._settle(route))
        return route

    async def _settle(self, route: Route) -> None:
        """Starts a new sandbox. If the start fails, its route is removed."""
        self.unplaced -= Room.of(route.request.spec)  # `_place` counts it before it awaits
        try:
            await self._place(route)
        except Exception as error:  # of any kind; it is raised in the callers that wait
            del self.routes[route.id]
            route.fail(error)
        else:
            self._started(route)

    async def _move(self, route: Route) -> None:
        """Starts the sandbox on another node, as soon as there is room."""
        deadline, reason = time.monotonic() + MOVE_S, ""
        while time.monotonic() < deadline and not route.unwanted:
            try:
                await self._place(route)
            except SandboxError as error:
                if str(error) != reason:
                    reason = str(error)
                    self._record("sandbox_waits", reason, sandbox=route.id)
                await asyncio.sleep(MOVE_PAUSE_S)
            # For example, its snapshot was lost with the node. Waiting callers get the reason.
            except Exception as error:
                reason = str(error) or repr(error)
                break
            else:
                self._record("sandbox_moved", f"to {route.home.name}", sandbox=route.id)
                self._started(route)
                return
        self._record("sandbox_lost", reason, sandbox=route.id)
        route.note(State.FAILED, reason, Cause.NODE_LOST)
        self._retire(route, Cause.NODE_LOST)
        route.fail(SandboxGone(route.id, route.cause))

    def _started(self, route: Route) -> None:
        route.settled_at = time.monotonic()
        route.arrival.set_result(None)
        if route.unwanted:
            self._background.spawn(self.end(route, route.unwanted))

    async def _place(self, route: Route) -> None:
        """Starts it on the node where its start leaves most room of what is scarcest: slots, memory
        or cpus. Errors: those of `start`.

        The reports of the nodes are up to a second old, so a few that seem full are tried as well.
        """
        room, up = Room.of(route.request.spec), self._nodes.up()
        shares = {node: (node.taken + room).share_of(node.capacity) for node in up}
        nodes = sorted(up, key=shares.__getitem__)
        for node in nodes[: sum(share <= 1 for share in shares.values()) + FULL_ONES_ASKED]:
            if route.unwanted:
                raise SandboxGone(route.id, route.unwanted)
            node.placed += room
            try:
                if route.request.snapshot:
                    owner = owner_of(route.request.labels)
                    await self.copies.bring(route.request.snapshot, owner, node)
                start = node.ask(START_S, "start", route.to_place(), generation=route.generation)
                route.told(await start)
            except PoolFull:
                continue  # the node has filled up since its last report
            except NodeLost as error:
                self._nodes.lose(node, str(error))
                continue
            except (SandboxStartError, SandboxGone):
                raise
            except SandboxError:  # it is unknown whether the sandbox has started
                self._background.spawn(self._withdraw(route.id, node))
                raise
            route.node, self._on[node][route.id] = node, route
            return
        spec = route.request.spec
        asked = f"a slot, {spec.memory_mb} MB and {spec.cpus:g} cpus"
        raise PoolFull(f"none of the {len(nodes)} nodes that are up has room for {asked}")

    async def _withdraw(self, id: str, node: Node) -> None:
        with contextlib.suppress(SandboxGone):
            await node.ask(ASK_S, "stop", id)

    def held(self, owner: str) -> Room:
        requests = (each.request for each in self.routes.values() if not each.is_over)
        return total(each.spec for each in requests if owner_of(each.labels) == owner)

    def route(self, id: str) -> Route:
        if id not in self.routes:
            raise SandboxGone(id, None)
        return self.routes[id]

    def noted(self, status: Status) -> Status:
        """Stores a status that a caller is about to receive."""
        route = self.routes.get(status.id)
        return route.told(status) if route and route.node else status

    async def settled(self, id: str) -> Route:
        """Returns the route of a sandbox; waits while it is starting. Errors: SandboxGone."""
        route = self.route(id)
        try:
            await asyncio.shield(route.arrival)
        except SandboxError as error:
            raise SandboxGone(id, route.cause) from error
        if route.is_over:
            raise SandboxGone(id, route.cause)
        return route

    async def ask(
        self, route: Route, seconds: float, method: str, /, *arguments: Any, **named: Any
    ) -> Any:
        """Calls the pool of its node. Errors: the pool's, and SandboxLost if the node is lost."""
        node = route.home
        try:
            return await node.ask(seconds, method, *arguments, **named)
        except NodeLost as error:
            self._nodes.lose(node, str(error))
            raise self.departure(route, error) from error

    def departure(self, route: Route, error: NodeLost) -> SandboxError:
        if route.cause is not None:
            return SandboxGone(route.id, route.cause)
        return SandboxLost(f"the sandbox was lost with its node: {error}")

    def unwant(self, route: Route, cause: Cause) -> None:
        route.unwanted = cause
        if route.arrival.done() and route.node is not None:
            self._background.spawn(self.end(route, cause))

    async def end(self, route: Route, cause: Cause) -> None:
        if route.node is not None:
            await self.ask(route, ASK_S, "stop", route.id, cause)
            await self._note_end(route)

    async def _note_end(self, route: Route) -> None:
        """Stores the last status of a sandbox that has ended according to its node."""
        if (node := route.node) is None:
            return
        cause = None
        try:
            status = route.told(await self.ask(route, ASK_S, "status", route.id))
            if (cause := status.cause) is None:
                return
        except SandboxLost:  # its node is lost, and `_uproot` handles that
            return
        except SandboxGone:  # it ended so long ago that its node has forgotten it
            pass
        if route.node is node:
            node.placed -= Room.of(route.request.spec)
            self._retire(route, cause)

    def _note_report(self, node: Node, report: NodeReport) -> None:
        for route in self._on[node].values():
            if route.settled_at < report.asked_at and route.id not in report.living:
                self._background.spawn(self._note_end(route))
        self._forget()

    def _note_loss(self, node: Node) -> None:
        self.copies.forget(node)
        for route in list(self._on[node].values()):
            self._uproot(route)
        del self._on[node]

    def _uproot(self, route: Route) -> None:
        """Ends or moves a sandbox whose node is lost."""
        self._record("sandbox_lost", "with its node", sandbox=route.id, generation=route.generation)
        route.note(State.FAILED, "its node is lost", Cause.NODE_LOST)
        self._retire(route, Cause.NODE_LOST)
        if route.request.recreate and not route.unwanted:
            route.keep_deadline()
            route.generation += 1
            route.cause, route.arrival = None, new_future()
            route.note(State.PENDING, f"generation {route.generation}")
            self._background.spawn(self._move(route))

    def _forget(self) -> None:
        oldest = time.monotonic() - self._options.remember_seconds
        while self._ended and self._ended[0].ended_at < oldest:
            route = self._ended.popleft()
            # Otherwise it was moved to another node since, or its id is in use again.
            if route.is_over and route.ended_at < oldest and self.routes.get(route.id) is route:
                del self.routes[route.id]

    def _retire(self, route: Route, cause: Cause | None) -> None:
        if route.node is not None:
            self._on[route.node].pop(route.id, None)
        route.end(cause)
        self._ended.append(route)

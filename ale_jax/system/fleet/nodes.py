"""The nodes of a Ray cluster that hold sandboxes: which have joined, which are lost, and which
snapshots each of them stores."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
from collections.abc import Callable, Coroutine
from typing import Any

import ray
from ray.exceptions import RayError

from ale_jax.sandbox.api import SandboxError, SandboxStartError
from ale_jax.sandbox.pool.api import Record
from ale_jax.sandbox.pool.machines import Launches
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.system.fleet.actor import NodeReport
from ale_jax.system.fleet.node import Node, NodeLost, bounded

LOOK_S = 1.0
RAY_S = 10.0
ASK_S = 60.0
WARM_S = 3600.0  # its image may have to be built first
KNOCK_S, MAX_REFUSALS = 0.5, 2


class Nodes:
    """A pool on every node of the cluster that this process has joined.

    A node that was started with --num-cpus=0 gets no pool, because the cluster's head or a service
    must not share a machine with sandboxes.

    all: by Ray's id; includes lost nodes for a while. on_report: called with each report. on_loss:
    called once for each lost node.
    """

    on_report: Callable[[Node, NodeReport], None]
    on_loss: Callable[[Node], None]

    def __init__(
        self,
        make_runtime: Callable[[], Launches],
        options: PoolOptions,
        record: Record,
        silent_seconds: float,
    ):
        self.all: dict[str, Node] = {}
        self._warm: dict[str, tuple[SandboxSpec, int]] = {}
        self._make_runtime, self._options = make_runtime, options
        self._record, self._silent_seconds = record, silent_seconds
        self._background = Background(record)
        self._is_closed = False

    async def open(self) -> None:
        """Returns when the nodes of the cluster have joined. SandboxStartError if none could."""
        await self._discover()
        await asyncio.gather(*(node.joined.wait() for node in self.all.values()))
        if not self.up():
            reasons = "; ".join(str(node.loss) for node in self.all.values())
            none = "no node has a CPU"
            raise SandboxStartError(f"no node can hold sandboxes: {reasons or none}")
        self._background.spawn(self._keep_discovering())

    async def close(self) -> None:
        self._is_closed = True
        self._background.cancel()
        closing = [node.close() for node in self.up()]
        for problem in await asyncio.gather(*closing, return_exceptions=True):
            if problem is not None:
                self._record("node_left", repr(problem))

    def up(self) -> list[Node]:
        return [node for node in self.all.values() if node.is_up]

    async def keep_warm(self, spec: SandboxSpec, count: int) -> None:
        """Keeps `count` sandboxes warm on each node, also on nodes that join later."""
        if not 0 <= count <= self._options.slots:
            raise ValueError(f"count {count} must be from 0 to {self._options.slots}, the slots")
        self._warm[spec.key()] = spec, count
        await asyncio.gather(*(self._warm_on(node, spec, count) for node in self.up()))

    async def _warm_on(self, node: Node, spec: SandboxSpec, count: int) -> None:
        try:
            await node.ask(WARM_S, "warm", spec, count)
        except NodeLost as error:  # the other nodes are not affected
            self.lose(node, str(error))

    async def _keep_discovering(self) -> None:
        """Looks at the cluster every LOOK_S seconds, and waits at most RAY_S for Ray's answer."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self._discover()
            except (TimeoutError, RayError) as error:
                self._record("cluster_silent", repr(error))

    async def _discover(self) -> None:
        there = {each["NodeID"]: each for each in await bounded(RAY_S, ray.nodes) if each["Alive"]}
        for node_id, each in there.items():
            known = self.all.get(node_id)
            if "CPU" in each["Resources"] and (known is None or known.may_rejoin):
                name = f"{each['NodeManagerHostname']}/{node_id[:8]}"
                options = dataclasses.replace(self._options, node=name)
                last = None if known is None else known.last
                node = Node(node_id, self._make_runtime, options, self._silent_seconds, last)
                self.all[node_id] = node
                self._background.spawn(self._follow(node))
                raylet = each["NodeManagerAddress"], each["NodeManagerPort"]
                self._background.spawn(self._knock(node, *raylet))
        for node_id, node in list(self.all.items()):
            if node_id not in there:
                self.lose(node, f"node {node.name} has left the cluster")
                if node.lost_for > self._options.remember_seconds:
                    del self.all[node_id]

    async def _follow(self, node: Node) -> None:
        """Consumes a node's reports. Waits for the next report, and is unblocked by it or by the
        node's loss."""
        try:
            await node.join()
            self._record("node_joined", node.name, node=node.name)
            assert node.last is not None, "a node joins with its first report"
            self._retell(node, node.last)
            for spec, count in self._warm.values():
                self._background.spawn(self._warm_on(node, spec, count))
            while True:
                report = await node.look(LOOK_S)
                if not report.status.alive:
                    raise NodeLost(f"the pool of node {node.name} has failed")
                self._retell(node, report)
                self.on_report(node, report)
        except Exception as error:  # of any kind, as a node without a follower must not count as up
            self.lose(node, str(error) or repr(error))
            if not isinstance(error, SandboxError):
                raise

    async def _knock(self, node: Node, address: str, port: int) -> None:
        """Connects to a node's raylet every KNOCK_S seconds, and waits at most KNOCK_S for it. Ray
        needs ten seconds or more to report a dead raylet, while its port refuses connections at
        once."""
        refusals = 0
        while refusals < MAX_REFUSALS and not node.is_lost:
            await asyncio.sleep(KNOCK_S)
            refusals = refusals + 1 if await refuses(address, port) else 0
        self.lose(node, f"node {node.name} is down: nothing listens at {address}:{port}")

    def _retell(self, node: Node, report: NodeReport) -> None:
        for each in report.events:
            fields = {"node": node.name, "sandbox": each.sandbox or None, **each.fields}
            self._record(each.kind, each.detail, at=each.at, **fields)

    def lose(self, node: Node, reason: str) -> None:
        if node.is_lost or self._is_closed:
            return
        node.lose(reason)
        self._record("node_lost", reason, node=node.name)
        self._background.spawn(node.kill())
        self.on_loss(node)


async def refuses(address: str, port: int) -> bool:
    """Returns whether the machine refuses connections to the port. No answer at all does not
    count."""
    try:
        async with asyncio.timeout(KNOCK_S):
            _, writer = await asyncio.open_connection(address, port)
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return False


MAX_SNAPSHOTS = 100_000  # entries kept here; nodes evict old snapshots long before that


class Copies:
    """Which nodes hold which owner's snapshots. lose: called with a node that turns out to be
    lost."""

    def __init__(self, lose: Callable[[Node, str], None]):
        self._holders: dict[tuple[str, str], set[Node]] = {}  # the newest snapshot last
        # A snapshot on its way is in memory here: one of each owner at a time.
        self._turns: dict[str, asyncio.Lock] = collections.defaultdict(asyncio.Lock)
        self._lose = lose

    def note(self, snapshot: str, owner: str, node: Node) -> None:
        """Notes that `snapshot` was taken on `node`."""
        key = owner, snapshot
        holders = self._holders[key] = self._holders.pop(key, set())
        holders.add(node)
        if len(self._holders) > MAX_SNAPSHOTS:
            del self._holders[next(iter(self._holders))]

    def forget(self, node: Node) -> None:
        for holders in self._holders.values():
            holders.discard(node)

    async def bring(self, snapshot: str, owner: str, node: Node) -> None:
        """Copies a snapshot to `node`, unless the node has it or no node is known to have it.

        Errors: NodeLost, if `node` is lost.
        """
        if node in self._holders.get((owner, snapshot), ()):
            return
        async with self._turns[owner]:
            await self._bring(snapshot, owner, node)

    async def _bring(self, snapshot: str, owner: str, node: Node) -> None:
        holders = self._holders.get((owner, snapshot), set())
        if node in holders:  # by now
            return
        for holder in list(holders):
            try:
                content = await holder.ask(ASK_S, "get_snapshot", snapshot, owner)
            except NodeLost as error:
                self._lose(holder, str(error))
                continue
            except ValueError:  # the snapshot was evicted there
                holders.discard(holder)
                continue
            await node.ask(ASK_S, "put_snapshot", content, owner)
            holders.add(node)
            return


class Background:
    """Tasks that nobody awaits. It keeps references to them, and records failures as
    `fleet_trouble`."""

    def __init__(self, record: Record):
        self._record = record
        self._tasks: set[asyncio.Task] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _note_end(self, task: asyncio.Task) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._record("fleet_trouble", repr(error))

"""A fleet's decisions, over nodes in memory: where sandboxes go, and what a lost node means."""

import asyncio
import dataclasses
import time

import pytest

from ale_jax.sandbox.api import SandboxError, SandboxLost
from ale_jax.sandbox.pool.accounting import Room
from ale_jax.sandbox.pool.api import Cause, PoolFull, SandboxGone, StartRequest, State
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.system.fleet.actor import NodeReport
from ale_jax.system.fleet.fleet import Fleet
from ale_jax.system.fleet.node import NodeLost
from ale_jax.system.fleet.routes import Routes
from tests.sandbox.pool.fakes import (
    OTHER,
    SPEC,
    Events,
    FakeRuntime,
    HandPool,
    in_a_loop,
    settle,
    until,
)


class MemoryNode:
    """A node whose pool is in this process. broken: its next start is done but not answered."""

    def __init__(self, name: str, slots: int):
        self.name, self.placed, self.is_lost, self.broken = name, Room(), False, False
        self.runtime = FakeRuntime()
        self.pool = HandPool(self.runtime, node=name, slots=slots)
        self.pool.clock.now = time.time()

    @property
    def capacity(self) -> Room:
        return self.pool._machines.capacity

    @property
    def taken(self) -> Room:
        return self.pool._machines.taken

    async def ask(self, seconds, method, /, *arguments, **named):
        if self.is_lost:
            raise NodeLost("it is lost")
        answer = await getattr(self.pool, method)(*arguments, **named)
        if self.is_lost:
            raise NodeLost("it was lost meanwhile")
        if self.broken and method == "start":
            self.broken = False
            raise SandboxError("broke off")
        return answer

    async def report(self) -> NodeReport:
        (status,) = await self.pool.nodes()
        now = asyncio.get_running_loop().time()
        return NodeReport(status, self.pool.living(), (), asked_at=now)


class MemoryNodes:
    """What `Routes` needs of `Nodes`."""

    def __init__(self, *slots: int):
        self.all = {str(i): MemoryNode(f"n{i}", slots=each) for i, each in enumerate(slots)}

    def __getitem__(self, number: int) -> MemoryNode:
        return self.all[str(number)]

    def up(self):
        return [node for node in self.all.values() if not node.is_lost]

    def lose(self, node, reason: str) -> None:
        if not node.is_lost:
            node.is_lost = True
            self.on_loss(node)

    async def close(self) -> None:
        for node in self.all.values():
            await node.pool.close()


class MemoryFleet(Fleet):
    def __init__(self, *slots: int):
        self.events = Events()
        super().__init__(FakeRuntime, record=self.events)
        self._nodes = MemoryNodes(*slots)
        self._routes = Routes(self._nodes, PoolOptions(), self._events.record)

    async def open(self) -> None:
        for node in self._nodes.all.values():
            await node.pool.open()


AGAIN = StartRequest(SPEC, id="a", recreate=True)


@in_a_loop
async def test_the_node_with_most_room_is_taken_and_kept():
    async with MemoryFleet(1, 3) as fleet:
        nodes = [(await fleet.start(StartRequest(SPEC, id=f"s{i}"))).node for i in range(4)]
        assert sorted(nodes) == ["n0", "n1", "n1", "n1"] and nodes[0] == nodes[1] == "n1"
        with pytest.raises(PoolFull, match="2 nodes"):
            await fleet.start(StartRequest(SPEC))
        assert [(await fleet.start(StartRequest(SPEC, id="s0"))).node] == ["n1"]
        with pytest.raises(ValueError, match="another sandbox"):
            await fleet.start(StartRequest(OTHER, id="s0"))
        for i in range(4):
            await fleet.call(f"s{i}", "write", files=b"%d" % i)
        assert [await fleet.call(f"s{i}", "snapshot") for i in range(4)] == [b"0", b"1", b"2", b"3"]


@in_a_loop
async def test_a_lost_node_ends_its_sandboxes_or_they_move():
    async with MemoryFleet(2, 1) as fleet:
        first = await fleet.start(dataclasses.replace(AGAIN, deadline_seconds=1000.0))
        second = await fleet.start(StartRequest(SPEC, id="b"))
        assert first.node == second.node == "n0"
        gates = [sandbox.hold() for sandbox in fleet._nodes[0].runtime.sandboxes]
        calls = [asyncio.ensure_future(fleet.call(id, "run", command="x")) for id in "ab"]
        await settle()
        fleet._nodes.lose(fleet._nodes[0], "said the test")
        assert (await fleet.status("b")).cause is Cause.NODE_LOST
        await until(lambda: fleet._routes.routes["a"].arrival.done())
        status = await fleet.status("a")
        assert (status.node, status.state, status.generation) == ("n1", State.RUNNING, 1)
        for gate in gates:  # and both answer, too late
            gate.set()
        with pytest.raises(SandboxLost, match="with its node"):
            await calls[0]
        with pytest.raises(SandboxGone) as caught:
            await calls[1]
        assert caught.value.cause is Cause.NODE_LOST
        assert (await fleet.call("a", "run", command="y", generation=1)).output == "y"
        member = fleet._nodes[1].pool._leases.known("a")
        assert 990.0 < member.request.deadline_seconds < 1000.0  # it goes on, from the first start


@in_a_loop
async def test_what_is_to_move_waits_for_room(monkeypatch):
    monkeypatch.setattr("ale_jax.system.fleet.routes.MOVE_PAUSE_S", 0.0)
    async with MemoryFleet(1, 1) as fleet:
        await fleet.start(AGAIN)
        other = await fleet.start(StartRequest(SPEC, id="b"))
        fleet._nodes.lose(fleet._nodes[0 if other.node == "n1" else 1], "said the test")
        call = asyncio.ensure_future(fleet.call("a", "run", command="y"))
        await settle()
        assert not call.done() and fleet.events.kinds.count("sandbox_waits") == 1
        waits = await fleet.status("a")
        assert (waits.state, waits.cause, waits.generation) == (State.PENDING, None, 1)
        assert [change.state for change in waits.history[-2:]] == [State.FAILED, State.PENDING]
        assert {each.id: each.cause for each in await fleet.statuses()} == {"a": None, "b": None}
        await fleet.stop("b")
        assert (await call).output == "y"
        told = [event for event in (await fleet.events_after(0)).events if event.sandbox == "a"]
        assert [event.kind for event in told] == ["sandbox_lost", "sandbox_waits", "sandbox_moved"]
        assert told[0].fields == {"generation": 0}


@in_a_loop
async def test_a_move_that_finds_no_room_in_time_is_given_up(monkeypatch):
    monkeypatch.setattr("ale_jax.system.fleet.routes.MOVE_S", 0.02)
    monkeypatch.setattr("ale_jax.system.fleet.routes.MOVE_PAUSE_S", 0.01)
    async with MemoryFleet(1) as fleet:
        await fleet.start(AGAIN)
        fleet._nodes.lose(fleet._nodes[0], "said the test")
        with pytest.raises(SandboxGone) as caught:
            await fleet.call("a", "run", command="y")
        assert caught.value.cause is Cause.NODE_LOST
        status = await fleet.status("a")
        assert (status.state, status.cause) == (State.FAILED, Cause.NODE_LOST)
        with pytest.raises(SandboxGone):
            await fleet.start(AGAIN)
        status = await fleet.status("a")
        assert (status.state, status.cause) == (State.FAILED, Cause.NODE_LOST)


@in_a_loop
async def test_whoever_waits_for_a_move_is_told_of_a_fault_of_ours():
    async with MemoryFleet(1, 1) as fleet:
        started = await fleet.start(AGAIN)
        here, there = (0, 1) if started.node == "n0" else (1, 0)
        fleet._nodes[there].runtime.plan.append("bug")
        fleet._nodes.lose(fleet._nodes[here], "said the test")
        async with asyncio.timeout(10):
            with pytest.raises(SandboxGone):
                await fleet.call("a", "run", command="y")
        assert "sandbox_lost" in fleet.events.kinds


@in_a_loop
async def test_one_that_is_on_its_way_is_pending_and_not_gone():
    async with MemoryFleet(1) as fleet:
        fleet._nodes[0].runtime.plan.append("wait")
        start = asyncio.ensure_future(fleet.start(StartRequest(SPEC, id="a", labels={"x": "y"})))
        await settle()
        status = await fleet.status("a")
        assert (status.state, status.cause, status.labels) == (State.PENDING, None, {"x": "y"})
        fleet._nodes[0].runtime.go.set()
        assert (await start).state is State.RUNNING


@in_a_loop
async def test_a_snapshot_is_brought_to_where_it_is_needed():
    async with MemoryFleet(1, 2) as fleet:
        first = await fleet.start(StartRequest(SPEC, id="a"))
        await fleet.call("a", "write", files=b"mine")
        forks = await fleet.fork("a", 2)
        assert sorted([first.node, *(fork.node for fork in forks)]) == ["n0", "n1", "n1"]
        for fork in forks:
            assert await fleet.call(fork.id, "snapshot") == b"mine"
        with pytest.raises(ValueError, match="no snapshot"):
            await fleet.restore("a", "x")


@in_a_loop
async def test_only_so_many_snapshots_are_known_of(monkeypatch):
    monkeypatch.setattr("ale_jax.system.fleet.nodes.MAX_SNAPSHOTS", 2)
    async with MemoryFleet(1, 1) as fleet:
        first = await fleet.start(StartRequest(SPEC, id="a"))
        taken = []
        for content in (b"1", b"2", b"1", b"3"):
            await fleet.call("a", "write", files=content)
            taken.append((await fleet.snapshot("a")).id)
        (there,) = (node for node in fleet._nodes.up() if node.name != first.node)
        for snapshot in taken[1:]:
            await fleet._routes.copies.bring(snapshot, "", there)
        assert [snapshot in there.pool._stores.of("") for snapshot in taken[1:]] == [
            False,
            True,
            True,
        ]


@in_a_loop
async def test_a_start_whose_answer_was_lost_is_taken_back():
    async with MemoryFleet(1) as fleet:
        fleet._nodes[0].broken = True
        with pytest.raises(SandboxError, match="broke off"):
            await fleet.start(StartRequest(SPEC, id="a"))
        await until(lambda: fleet._nodes[0].runtime.existing == 0)
        await fleet.start(StartRequest(SPEC, id="b"))


@in_a_loop
async def test_a_cancelled_start_and_redundant_ones_leave_nothing():
    async with MemoryFleet(2, 2) as fleet:
        runtimes = [fleet._nodes[i].runtime for i in range(2)]
        for runtime in runtimes:
            runtime.plan.append("wait")
        start = asyncio.ensure_future(fleet.start(StartRequest(SPEC, id="a")))
        await settle()
        start.cancel()
        (won,) = await fleet.start_many(StartRequest(SPEC, id="m"), count=1, spare=1)
        for runtime in runtimes:
            runtime.go.set()
        await until(lambda: sum(runtime.existing for runtime in runtimes) == 1)
        assert (await fleet.call(won.id, "run", command="x")).output == "x"
        ids = {status.id for status in await fleet.statuses() if status.cause is None}
        assert ids == {won.id}


@in_a_loop
async def test_one_that_its_node_ended_is_gone_and_its_cause_is_known():
    async with MemoryFleet(1) as fleet:
        await fleet.start(StartRequest(SPEC, id="a", idle_seconds=5.0))
        node = fleet._nodes[0]
        await node.pool.tick(seconds=10.0)
        fleet._routes._note_report(node, await node.report())
        await until(lambda: fleet._routes.routes["a"].is_over)
        fleet._nodes.lose(node, "said the test")  # now nobody else knows
        assert (await fleet.status("a")).cause is Cause.IDLE
        with pytest.raises(SandboxGone) as caught:
            await fleet.call("a", "run", command="x")
        assert caught.value.cause is Cause.IDLE
        await fleet.stop("a")  # again: nothing


class Unsearchable(dict):
    def values(self):
        raise AssertionError("all routes were searched")

    items = keys = __iter__ = values


@in_a_loop
async def test_a_report_and_a_loss_concern_the_routes_of_their_node_only():
    async with MemoryFleet(2, 2) as fleet:
        for id in "abcd":
            await fleet.start(StartRequest(SPEC, id=id, recreate=id == "a"))
        routes, nodes = fleet._routes, fleet._nodes
        everywhere = dict(routes.routes)
        first = [id for id, route in everywhere.items() if route.node is nodes[0]]
        routes.routes = Unsearchable(everywhere)
        report = dataclasses.replace(await nodes[1].report(), living=frozenset())
        routes._note_report(nodes[0], report)  # as if the sandboxes of the first had all ended
        await settle()
        assert all(route.node is not None for route in everywhere.values())  # its pool knows better
        for id in first:
            await nodes[0].pool.stop(id)
        routes._note_report(nodes[0], await nodes[0].report())
        await until(lambda: all(everywhere[id].is_over for id in first))
        nodes.lose(nodes[1], "said the test")
        await until(lambda: all(each.is_over or each.node for each in everywhere.values()))
        assert {each.cause for id, each in everywhere.items() if id not in first} <= {
            *(None, Cause.NODE_LOST)
        }
        assert not routes._on[nodes[1]] and set(routes._on[nodes[0]]) <= {"a"}
        routes.routes = everywhere


@in_a_loop
async def test_ended_ones_are_forgotten_in_time_and_living_ones_never():
    async with MemoryFleet(4) as fleet:
        for id in "ab":
            await fleet.start(StartRequest(SPEC, id=id))
        await fleet.stop("a")
        node = fleet._nodes[0]
        fleet._routes._note_report(node, await node.report())
        assert set(fleet._routes.routes) == {"a", "b"}
        fleet._routes.routes["a"].ended_at -= PoolOptions().remember_seconds + 1
        fleet._routes._note_report(node, await node.report())
        assert set(fleet._routes.routes) == {"b"}


@in_a_loop
async def test_many_that_are_asked_for_again_are_the_same():
    async with MemoryFleet(2, 2) as fleet:
        request = StartRequest(SPEC, id="m")
        first = await fleet.start_many(request, count=2, spare=1)
        await until(lambda: sum(node.runtime.existing for node in fleet._nodes.up()) == 2)
        again = await fleet.start_many(request, count=2, spare=1)
        assert {each.id for each in again} == {each.id for each in first}
        with pytest.raises(SandboxGone):
            await fleet.start_many(request, count=3)
        with pytest.raises(PoolFull):
            await fleet.start_many(StartRequest(SPEC), count=3)
        await settle()
        await until(lambda: sum(node.runtime.existing for node in fleet._nodes.up()) == 2)
        assert (await fleet.call(first[0].id, "run", command="x")).output == "x"


@in_a_loop
async def test_a_renewed_sandbox_keeps_its_new_deadline_on_another_node():
    async with MemoryFleet(2, 2) as fleet:
        await fleet.start(dataclasses.replace(AGAIN, deadline_seconds=50.0))
        await fleet.renew("a", 1000.0)
        fleet._nodes.lose(fleet._nodes[0], "said the test")
        await until(lambda: fleet._routes.routes["a"].arrival.done())
        moved = fleet._nodes[1].pool._lifecycle.sandboxes["a"].request
        assert moved.deadline_seconds == pytest.approx(1000.0, abs=5.0)
        (fork,) = await fleet.fork("a", 1)  # which was never renewed
        fork = fleet._nodes[1].pool._lifecycle.sandboxes[fork.id].request
        assert fork.deadline_seconds == 50.0


@in_a_loop
async def test_a_snapshot_is_brought_to_another_node_for_its_owner_alone():
    ann, bob = ({"tenant": name} for name in ("ann", "bob"))
    async with MemoryFleet(1, 1) as fleet:
        await fleet.start(StartRequest(SPEC, id="a", labels=ann))
        await fleet.call("a", "write", files=b"hers")
        taken = (await fleet.snapshot("a")).id
        with pytest.raises(ValueError, match="no snapshot"):
            await fleet.start(StartRequest(SPEC, labels=bob, snapshot=taken))
        again = await fleet.start(StartRequest(SPEC, labels=ann, snapshot=taken))
        assert again.node == "n1" and await fleet.call(again.id, "snapshot") == b"hers"


@in_a_loop
async def test_a_snapshot_is_brought_to_a_node_once_for_all_starts_that_need_it(monkeypatch):
    async with MemoryFleet(1, 4) as fleet:
        holder, other = fleet._nodes.up()
        info = await holder.pool.put_snapshot(b"x")
        fleet._routes.copies.note(info.id, "", holder)
        brought, put = [], other.pool.put_snapshot
        monkeypatch.setattr(other.pool, "put_snapshot", lambda *a: brought.append(a[0]) or put(*a))
        request = StartRequest(SPEC, snapshot=info.id)
        statuses = await asyncio.gather(*(fleet.start(request) for _ in range(5)))
        assert sorted(each.node for each in statuses) == ["n0", *["n1"] * 4]
        assert brought == [b"x"]

"""What a fleet does when a node breaks off, or the cluster does not answer."""

import asyncio
import gc

from ray.exceptions import RayError

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.pool.api import StartRequest
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.system.fleet.node import NodeLost
from ale_jax.system.fleet.nodes import Nodes
from ale_jax.system.fleet.route import FarTerminal, begin
from tests.sandbox.pool.fakes import (
    SPEC,
    Events,
    FakeRuntime,
    in_a_loop,
    settle,
    until,
)
from tests.system.fleet.test_routes import MemoryFleet


@in_a_loop
async def test_a_node_that_breaks_off_hides_its_own_sandboxes_alone():
    async with MemoryFleet(1, 1) as fleet:
        for id in "ab":
            await fleet.start(StartRequest(SPEC, id=id))
        nodes = list(fleet._nodes.all.values())
        fleet._nodes.up = lambda: nodes  # nobody has noticed yet that one of them is lost
        assert [each.id for each in await fleet.statuses()] == ["a", "b"]
        fleet._nodes[0].is_lost = True
        assert [each.id for each in await fleet.statuses()] == ["b"]


@in_a_loop
async def test_a_node_that_breaks_off_a_start_is_lost_and_the_next_one_is_asked():
    async def ask(*arguments, **named):
        raise NodeLost("its line was cut")

    async with MemoryFleet(2, 1) as fleet:
        fleet._nodes[0].ask = ask
        assert (await fleet.start(StartRequest(SPEC))).node == "n1"
        assert fleet._nodes[0].is_lost


class HastyNode:
    """Every time limit of a call to it is over at once. reads: set once it takes input."""

    def __init__(self):
        self.reads = asyncio.Event()

    async def tell(self, seconds, method, *arguments):
        async with asyncio.timeout(None if seconds is None else 0.0):
            await self.reads.wait()


@in_a_loop
async def test_input_waits_as_long_as_the_command_does_not_read():
    node = HastyNode()
    writing = asyncio.ensure_future(FarTerminal(node, "key", None).write(b"input"))
    await settle()
    assert not writing.done()
    node.reads.set()
    await writing


@in_a_loop
async def test_a_failure_that_nobody_waits_for_is_not_reported_as_a_bug():
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, what: reported.append(what))
    route = begin(StartRequest(SPEC, id="a"))
    route.fail(SandboxError("no room"))
    assert route.is_over
    del route
    gc.collect()
    assert reported == []


@in_a_loop
async def test_a_cluster_that_does_not_answer_is_asked_again(monkeypatch):
    asked = []

    def ask():
        asked.append(len(asked))
        if len(asked) == 1:
            raise RayError("gone")
        return []

    monkeypatch.setattr("ale_jax.system.fleet.nodes.ray.nodes", ask)
    monkeypatch.setattr("ale_jax.system.fleet.nodes.LOOK_S", 0.0)
    events = Events()
    nodes = Nodes(FakeRuntime, PoolOptions(), events, silent_seconds=1.0)
    looking = asyncio.ensure_future(nodes._keep_discovering())
    await until(lambda: len(asked) > 1)
    looking.cancel()
    assert events == [("cluster_silent", {})]

"""Sandboxes on two Ray nodes of this machine, one of which is killed."""

import asyncio
import functools
import logging
import os

import pytest
import ray
from ray.cluster_utils import Cluster

from ale_jax.sandbox.api import SandboxLost, SandboxStartError
from ale_jax.sandbox.pool.api import Cause, PoolFull, SandboxGone, StartRequest, State
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.system.cluster import OBJECT_STORE_BYTES
from ale_jax.system.sandbox_fleet import Fleet
from tests.sandbox.pool.fakes import Events, in_a_loop, until
from tests.system.conftest import SPEC

NODE = {"num_cpus": 1, "object_store_memory": OBJECT_STORE_BYTES}


@pytest.fixture(scope="module")
def cluster():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster = Cluster(initialize_head=True, head_node_args=NODE | {"include_dashboard": False})
    ray.init(cluster.address, log_to_driver=False, logging_level=logging.CRITICAL)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def fleet_of(cluster, runtime_name):
    make_runtime = functools.partial(pick_runtime, runtime_name, SPEC)
    return lambda slots: Fleet(make_runtime, PoolOptions(slots=slots), Events())


async def text(fleet, id: str, command: str, **named) -> str:
    return (await fleet.call(id, "run", command=command, **named)).output


@in_a_loop
async def test_two_nodes_one_of_which_is_killed(cluster, fleet_of):
    async with fleet_of(slots=2) as fleet:
        (first,) = await fleet.nodes()
        assert (first.slots, first.used, first.alive) == (2, 0, True)
        stays = await fleet.start(StartRequest(SPEC, id="stays"))
        second = cluster.add_node(wait=False, **NODE)  # sets signals: for the main thread only
        await until(lambda: len(fleet._nodes.up()) == 2)  # it joins without being asked

        moves = await fleet.start(StartRequest(SPEC, id="moves", recreate=True))
        assert moves.node != stays.node  # where more slots are free
        dies = await fleet.start(StartRequest(SPEC, id="dies"))
        others = [stays.node, moves.node]
        last = await fleet.start(StartRequest(SPEC, id="last"))
        assert sorted([dies.node, last.node]) == sorted(others)
        with pytest.raises(PoolFull):
            await fleet.start(StartRequest(SPEC))
        if dies.node == stays.node:
            dies, last = last, dies
        await fleet.stop(last.id)  # makes room for the one that will move

        for id in ("stays", "moves", dies.id):
            await text(fleet, id, f"echo {id} > f")
        again = await fleet.start(StartRequest(SPEC, id="stays"))
        assert (again.node, await text(fleet, "stays", "cat f")) == (stays.node, "stays\n")
        calls = [
            asyncio.ensure_future(text(fleet, id, "sleep 60", timeout=90))
            for id in ("moves", dies.id)
        ]
        async with asyncio.timeout(30):  # until they are under way
            while [(await fleet.status(id)).busy for id in ("moves", dies.id)] != [1, 1]:
                await asyncio.sleep(0.05)
        await asyncio.to_thread(cluster.remove_node, second, False)  # without a goodbye

        lost, gone = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(lost, SandboxLost)
        assert isinstance(gone, SandboxGone) and gone.cause is Cause.NODE_LOST
        assert await text(fleet, "moves", "ls") == ""
        status = await fleet.status("moves")
        assert (status.node, status.generation) == (stays.node, 1)
        with pytest.raises(SandboxLost, match="generation 0"):
            await text(fleet, "moves", "true", generation=0)
        status = await fleet.status(dies.id)
        assert (status.state, status.cause) == (State.FAILED, Cause.NODE_LOST)
        with pytest.raises(SandboxGone):
            await text(fleet, dies.id, "true")
        assert await text(fleet, "stays", "cat f") == "stays\n"  # its sibling noticed nothing
        assert [node.alive for node in await fleet.nodes()] == [True, False]


@in_a_loop
async def test_what_a_pool_does_a_fleet_does_from_afar(fleet_of):
    async with fleet_of(slots=4) as fleet:
        await fleet.warm(SPEC, 1)
        await fleet.start(StartRequest(SPEC, id="a", labels={"x": "y"}))
        await text(fleet, "a", "echo mine > f")
        pieces = [each async for each in fleet.stream("a", "cat; exit 3", stdin=b"in")]
        assert pieces == [("stdout", b"in"), ("exit", 3)]
        endless = fleet.stream("a", "yes")
        assert (await anext(endless))[0] == "stdout"
        await endless.aclose()
        async with asyncio.timeout(30):
            while "yes" in await text(fleet, "a", "cat /proc/[0-9]*/comm"):
                await asyncio.sleep(0.05)
        (fork,) = await fleet.fork("a", 1)
        assert await text(fleet, fork.id, "cat f") == "mine\n" and fork.labels == {"x": "y"}
        await fleet.warm(SPEC, 0)
        with pytest.raises(ValueError, match="another"):
            await fleet.start(StartRequest(SPEC, id="a", snapshot="x"))
        with pytest.raises(ValueError, match="choose one of run"):
            await fleet.call("a", "close")
        with pytest.raises(FileNotFoundError):
            await fleet.call("a", "read", path="nothing")
        assert await fleet.call("a", "interrupt", seconds=1.0) is False

        start = asyncio.ensure_future(fleet.start(StartRequest(SPEC, id="given-up")))
        await asyncio.sleep(0)
        start.cancel()
        won = await fleet.start_many(StartRequest(SPEC), count=1, spare=1)
        await fleet.stop(won[0].id)
        async with asyncio.timeout(30):
            while {s.id for s in await fleet.statuses() if s.cause is None} != {"a", fork.id}:
                await asyncio.sleep(0.05)
        assert (await fleet.status(won[0].id)).cause is Cause.STOPPED
    with pytest.raises(SandboxStartError, match="closed"):
        await fleet.start(StartRequest(SPEC))


def no_runtime():
    raise SandboxStartError("nothing works here")


@in_a_loop
async def test_a_cluster_that_cannot_hold_sandboxes_says_why(cluster):
    with pytest.raises(SandboxStartError, match="nothing works here"):
        await Fleet(no_runtime, record=Events()).open()

"""Sandboxes on two Ray nodes of this machine, one of which is killed."""

import asyncio
import functools
import logging
import os
import signal
import time

import httpx
import pytest
import ray

from ale_jax.sandbox.api import SandboxLost, SandboxStartError
from ale_jax.sandbox.pool.api import Cause, PoolEvent, PoolFull, SandboxGone, StartRequest, State
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.service.app import create_app
from ale_jax.system.fleet.fleet import Fleet
from ale_jax.system.fleet.node import NodeLost
from tests.sandbox.pool.fakes import Events, in_a_loop, until
from tests.system import sandboxes
from tests.system.conftest import NODE, SPEC

HERE = "http://127.0.0.1"


@pytest.fixture(scope="module")
def joined(cluster):
    ray.init(cluster.address, log_to_driver=False, logging_level=logging.CRITICAL)
    yield cluster
    ray.shutdown()


@pytest.fixture
def fleet_of(joined, runtime_name):
    make_runtime = functools.partial(pick_runtime, runtime_name, SPEC)
    return lambda slots: Fleet(make_runtime, PoolOptions(slots=slots), Events())


async def events_of(fleet, sandbox: str, kind: str) -> list[PoolEvent]:
    """All of a sandbox, once one of that kind is among them."""
    async with asyncio.timeout(30):
        while True:
            told = (await fleet.events_after(0)).events
            if any((each.kind, each.sandbox) == (kind, sandbox) for each in told):
                return [each for each in told if each.sandbox == sandbox]
            await asyncio.sleep(0.05)


async def text(fleet, id: str, command: str, **named) -> str:
    return (await fleet.call(id, "run", command=command, **named)).output


async def episode(fleet, id: str, goes_on) -> list[str]:
    """What an agent sees whose session and files go from step to step. goes_on: after how many."""
    seen = []
    while goes_on(len(seen)):
        step = f"n=$(((n * 7 + {len(seen)}) % 997)); echo $n >> log; sleep 0.1; tail -n 3 log; pwd"
        seen.append(await text(fleet, id, f"{step}; md5sum < log; mkdir $n 2>&1 && cd $n"))
        assert seen[-1].count("\n") > 2, seen[-1]
    return seen


@pytest.mark.slow
@in_a_loop
async def test_two_nodes_one_of_which_is_killed(joined, fleet_of):
    async with fleet_of(slots=2) as fleet:
        (first,) = await fleet.nodes()
        assert (first.slots, first.used, first.alive) == (2, 0, True)
        stays = await fleet.start(StartRequest(SPEC, id="stays"))
        second = joined.add_node(wait=False, **NODE)  # sets signals: for the main thread only
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

        for id in ("moves", dies.id):
            await text(fleet, id, f"echo {id} > f")
        again = await fleet.start(StartRequest(SPEC, id="moves"))
        assert (again.node, await text(fleet, "moves", "cat f")) == (moves.node, "moves\n")
        is_over, steps = asyncio.Event(), []
        sibling = asyncio.ensure_future(
            episode(fleet, "stays", lambda count: steps.append(count) or not is_over.is_set())
        )
        calls = [
            asyncio.ensure_future(text(fleet, id, "sleep 60", timeout=90))
            for id in ("moves", dies.id)
        ]
        async with asyncio.timeout(30):  # until they are under way
            while [(await fleet.status(id)).busy for id in ("moves", dies.id)] != [1, 1]:
                await asyncio.sleep(0.05)
        steps_before = len(steps)
        await events_of(fleet, "moves", "sandbox_started")  # what it has not told dies with it
        await asyncio.to_thread(joined.remove_node, second, False)  # without a goodbye

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
        assert [node.alive for node in await fleet.nodes()] == [True, False]
        told = [each.kind for each in await events_of(fleet, "moves", "sandbox_recreated")]
        assert told[:2] == ["sandbox_started", "sandbox_lost"]
        assert sorted(told[2:]) == ["sandbox_moved", "sandbox_recreated"]

        is_over.set()
        seen = await sibling
        assert len(seen) > steps_before
        await fleet.stop("moves")
        await fleet.start(StartRequest(SPEC, id="undisturbed"))
        assert seen == await episode(fleet, "undisturbed", lambda count: count < len(seen))


@in_a_loop
async def test_a_pool_that_is_killed_comes_back_and_so_does_what_is_to_be_recreated(
    fleet_of, runtime_name
):
    async with fleet_of(slots=4) as fleet:
        await fleet.start(StartRequest(SPEC, id="again", recreate=True))
        await fleet.start(StartRequest(SPEC, id="dies"))
        (node,) = fleet._nodes.up()
        pid = await node._actor.__ray_call__.remote(lambda actor: os.getpid())
        made = sandboxes.of(runtime_name, pid)
        assert len(made) == 2
        calls = [asyncio.ensure_future(text(fleet, id, "sleep 60")) for id in ("again", "dies")]
        while [(await fleet.status(id)).busy for id in ("again", "dies")] != [1, 1]:
            await asyncio.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
        lost, gone = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(lost, SandboxLost)
        assert isinstance(gone, SandboxGone) and gone.cause is Cause.NODE_LOST
        assert await text(fleet, "again", "echo back") == "back\n"
        assert (await fleet.status("again")).generation == 1
        (status,) = await fleet.nodes()
        assert status.alive
        await until(lambda: not any(sandboxes.exists(runtime_name, each) for each in made))


@in_a_loop
async def test_what_a_lost_node_still_says_is_not_believed(fleet_of):
    async with fleet_of(slots=1) as fleet:
        (node,) = fleet._nodes.up()
        node.lose("as far as is known")
        with pytest.raises(NodeLost, match="as far as"):
            await node.look()  # its actor lives, and answers
        assert not node.last.status.alive
        await node.kill()


@pytest.mark.slow
@in_a_loop
async def test_a_node_without_cpus_is_left_alone(joined, fleet_of):
    ruler = joined.add_node(**(NODE | {"num_cpus": 0}))
    assert ruler.node_id in {each["NodeID"] for each in ray.nodes() if each["Alive"]}
    async with fleet_of(slots=1) as fleet:
        assert len(fleet._nodes.up()) == 1 and ruler.node_id not in fleet._nodes.all
    await asyncio.to_thread(joined.remove_node, ruler)


@in_a_loop
async def test_what_a_pool_does_a_fleet_does_from_afar(fleet_of):
    async with fleet_of(slots=6) as fleet:
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


@in_a_loop
async def test_the_page_of_a_service_over_a_fleet_is_told_all(fleet_of):
    async with fleet_of(slots=2) as fleet:
        transport = httpx.ASGITransport(create_app(fleet))
        async with httpx.AsyncClient(transport=transport, base_url=HERE) as http:
            began = time.time()
            await fleet.start(StartRequest(SPEC, id="a"))
            await text(fleet, "a", "true")
            await fleet.stop("a")
            *_, ended = await events_of(fleet, "a", "sandbox_ended")
            assert began < ended.at < time.time()  # when it happened, not when it was told
            answer = (await http.get("/v1/fleet")).json()
            (node,) = answer["nodes"]
            (row,) = answer["sandboxes"]["rows"]
            assert (row["id"], row["state"], row["cause"]) == ("~a", "stopped", "stopped")
            assert row["node"] == node["node"] and node["alive"]
            told = {event["kind"]: event for event in answer["events"]["events"]}
            # There may be another's end, too: Ray speaks of a dead node as alive for a while.
            assert told.keys() - {"node_lost"} == {
                "node_joined",
                "sandbox_started",
                "sandbox_ended",
            }
            assert told["sandbox_started"]["fields"] == {"generation": 0, "node": node["node"]}
            assert (await http.get(f"/v1/nodes/{node['node']}/health")).status_code == 200
            assert (await http.get("/v1/sandboxes/~a/health")).status_code == 410


def no_runtime():
    raise SandboxStartError("nothing works here")


@in_a_loop
async def test_a_cluster_that_cannot_hold_sandboxes_says_why(joined):
    with pytest.raises(SandboxStartError, match="nothing works here"):
        await Fleet(no_runtime, record=Events()).open()

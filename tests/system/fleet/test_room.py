"""The room of a fleet's nodes: where it is left, who holds it, and how much one owner may have."""

import asyncio
import dataclasses
import math

import pytest

from ale_jax.sandbox.pool.accounting import Room
from ale_jax.sandbox.pool.api import OwnerLimits, PoolFull, QuotaExceeded, StartRequest, Status
from tests.sandbox.pool.fakes import SPEC, in_a_loop
from tests.system.fleet.test_routes import MemoryFleet


@in_a_loop
async def test_a_node_with_more_free_memory_is_preferred_to_one_with_more_slots():
    async with MemoryFleet(8, 4) as fleet:
        small, large = (fleet._nodes[n].pool._machines for n in (0, 1))
        small.capacity = dataclasses.replace(small.capacity, memory_mb=2 * SPEC.memory_mb)
        nodes = [(await fleet.start(StartRequest(SPEC, id=f"s{i}"))).node for i in range(6)]
        # A start takes half of the memory of n0, and a quarter of the slots of n1.
        assert nodes == ["n1", "n0", "n1", "n1", "n0", "n1"]
        assert fleet.free().memory_mb == large.capacity.memory_mb - 4 * SPEC.memory_mb
        with pytest.raises(PoolFull, match="none of the 2 nodes that are up has room"):
            await fleet.start(StartRequest(SPEC))


@in_a_loop
async def test_what_an_owner_holds_and_has_used_is_summed_over_the_nodes():
    ann = StartRequest(SPEC, labels={"tenant": "ann"})
    async with MemoryFleet(1, 1) as fleet:
        start = asyncio.ensure_future(fleet.start_many(ann, count=2))
        await asyncio.sleep(0)
        assert await fleet.held("ann") == Room.of(SPEC, 2)  # before anything has started
        first, _ = await start
        for node in fleet._nodes.up():
            await node.pool.tick(seconds=5.0)
        assert (await fleet.usage())["ann"].sandbox_seconds == pytest.approx(10.0, abs=0.1)
        await fleet.stop(first.id)
        assert (await fleet.held("ann"), await fleet.held("bob")) == (Room.of(SPEC), Room())


@in_a_loop
async def test_starts_at_once_leave_as_much_as_they_take():
    ann = StartRequest(SPEC, labels={"tenant": "ann"})
    shares = OwnerLimits(Room(*[math.inf] * 4), shares=True)
    three = dataclasses.replace(shares, room=dataclasses.replace(shares.room, sandboxes=3))
    async with MemoryFleet(2, 2) as fleet:
        starts = [fleet.start(dataclasses.replace(ann, id=f"s{i}"), shares) for i in range(4)]
        outcomes = await asyncio.gather(*starts, return_exceptions=True)
        assert [type(each) for each in outcomes] == [Status, Status, PoolFull, PoolFull]
        assert (await fleet.start(dataclasses.replace(ann, id="s0"), shares)).id == "s0"
        with pytest.raises(QuotaExceeded, match="sandboxes 4"):
            await fleet.start_many(ann, 1, 1, three)
        snapshots = []
        fleet.snapshot, take = (
            lambda *asked: snapshots.append(asked) or take(*asked),
            fleet.snapshot,
        )
        with pytest.raises(QuotaExceeded, match="sandboxes 4"):
            await fleet.fork("s0", 2, None, three)
        assert not snapshots
        assert len(await fleet.fork("s0", 1, None, three)) == 1

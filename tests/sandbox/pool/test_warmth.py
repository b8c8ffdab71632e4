"""Warm sandboxes, and starts from snapshots."""

import asyncio

import pytest

from ale_jax.sandbox.api import SandboxError, SandboxStartError
from ale_jax.sandbox.pool.api import PoolFull, StartRequest, State
from tests.sandbox.pool.fakes import OTHER, SPEC, FakeRuntime, HandPool, in_a_loop, settle, until

REQUEST = StartRequest(SPEC)


async def ready(pool) -> int:
    return (await pool.nodes())[0].ready


@in_a_loop
async def test_warm_ones_are_kept_and_given_and_replaced():
    runtime = FakeRuntime()
    async with HandPool(runtime) as pool:
        await pool.warm(SPEC, 2)
        await pool.tick(2)
        assert await ready(pool) == 2 and {s.state for s in await pool.statuses()} == {"ready"}
        warm = runtime.sandboxes[0]
        status = await pool.start(StartRequest(SPEC, id="a", labels={"x": "y"}))
        assert [change.state for change in status.history] == [
            *("pending", "starting", "ready", "running")
        ]
        assert (status.id, status.labels) == ("a", {"x": "y"}) and await ready(pool) == 1
        await pool.call("a", "write", files=b"1")
        assert warm.files == b"1"
        await pool.tick(2)
        assert await ready(pool) == 2 and len(runtime.sandboxes) == 3


@in_a_loop
async def test_their_image_is_made_before_they_are_started():
    runtime = FakeRuntime("no image")
    async with HandPool(runtime) as pool:
        with pytest.raises(SandboxStartError, match="no such image"):
            await pool.warm(SPEC, 2)
        await pool.tick(2)
        assert not runtime.sandboxes
        await pool.warm(SPEC, 2)
        assert runtime.prepared == [SPEC] and not runtime.sandboxes
        await pool.tick(2)
        assert await ready(pool) == 2
        await pool.warm(SPEC, 0)
        assert runtime.prepared == [SPEC]  # none is wanted, none is made


@in_a_loop
async def test_fewer_are_wanted():
    runtime = FakeRuntime()
    async with HandPool(runtime) as pool:
        await pool.warm(SPEC, 3)
        await pool.tick(3)
        await pool.warm(SPEC, 1)
        await pool.tick(3)
        assert await ready(pool) == runtime.existing == 1
        with pytest.raises(ValueError, match="from 0 to 4"):
            await pool.warm(SPEC, 5)


@in_a_loop
async def test_starts_get_one_that_is_on_its_way():
    runtime = FakeRuntime("wait")
    async with HandPool(runtime) as pool:
        await pool.warm(SPEC, 1)
        await settle()
        start = asyncio.ensure_future(pool.start(REQUEST))
        await settle()
        runtime.go.set()
        assert (await start).state is State.RUNNING
        assert len(runtime.labels) == 1  # launches


@in_a_loop
async def test_a_warm_one_makes_room_for_another_spec_and_the_refill_does_not_fight():
    runtime = FakeRuntime()
    async with HandPool(runtime, slots=2) as pool:
        await pool.warm(SPEC, 2)
        await pool.tick(3)
        status = await pool.start(StartRequest(OTHER))
        await pool.tick(3)
        assert status.spec == OTHER and await ready(pool) == 1 and runtime.most == 2
        await pool.start(StartRequest(OTHER))
        await pool.tick(3)
        assert runtime.existing == pool.used == runtime.most == 2
        with pytest.raises(PoolFull):
            await pool.start(StartRequest(OTHER))


@in_a_loop
async def test_a_warm_one_that_dies_is_replaced():
    runtime = FakeRuntime()
    async with HandPool(runtime) as pool:
        await pool.warm(SPEC, 1)
        await pool.tick()
        runtime.sandboxes[0].die()
        await pool.tick(6)
        assert await ready(pool) == 1 and runtime.existing == pool.used == 1
        assert (await pool.start(REQUEST)).state is State.RUNNING


@in_a_loop
async def test_warm_starts_that_fail_are_tried_again_ever_more_slowly():
    runtime = FakeRuntime(*["fail"] * 3)
    async with HandPool(runtime) as pool:
        await pool.warm(SPEC, 1)
        tried = []
        for second in range(10):
            tried.append((second, 3 - len(runtime.plan)))
            await pool.tick(seconds=1)
        # The first failure is seen one tick later, and then there are pauses of 1, 2 and 4 s.
        assert tried[1][1] == 1 and tried[-1][1] == 3
        assert len({count for _, count in tried[1:5]}) == 2
        await pool.tick(8, seconds=1)
        assert await ready(pool) == 1
        assert pool.events.kinds == ["sandbox_start_failed"] * 3 + ["sandbox_warm"]


@in_a_loop
async def test_refilling_leaves_permits_to_others():
    runtime = FakeRuntime(*["wait"] * 9)
    async with HandPool(runtime, slots=9, creates=4) as pool:
        await pool.warm(SPEC, 8)
        await pool.tick(3)
        assert runtime.starting == 2
        start = asyncio.ensure_future(pool.start(StartRequest(OTHER)))
        await settle()
        assert runtime.starting == 3
        runtime.go.set()
        await start


@in_a_loop
async def test_a_fork_has_the_files_and_both_go_their_own_ways(tmp_path):
    runtime = FakeRuntime()
    async with HandPool(runtime, slots=9, snapshot_directory=str(tmp_path)) as pool:
        await pool.warm(SPEC, 2)
        await pool.tick(2)
        await pool.start(StartRequest(SPEC, id="a", labels={"x": "y"}))
        await pool.tick(2)
        await pool.call("a", "write", files=b"mine")
        forks = await pool.fork("a", 3)
        states = sorted(fork.history[2].state for fork in forks)
        assert states == ["ready", "ready", "running"]  # two of them were warm
        await pool.call("a", "write", files=b"changed")
        for fork in forks:
            assert await pool.call(fork.id, "snapshot") == b"mine" and fork.labels == {"x": "y"}
        assert len(list(tmp_path.iterdir())) == 1


@in_a_loop
async def test_a_snapshot_outlives_its_sandbox_and_can_be_restored():
    runtime = FakeRuntime()
    async with HandPool(runtime) as pool:
        await pool.start(StartRequest(SPEC, id="a"))
        await pool.call("a", "write", files=b"mine")
        info = await pool.snapshot("a")
        await pool.stop("a")
        status = await pool.start(StartRequest(SPEC, id="b", snapshot=info.id, recreate=True))
        assert await pool.call("b", "snapshot") == b"mine"
        await pool.call("b", "write", files=b"changed")
        await pool.restore("b", info.id)
        assert await pool.call("b", "snapshot") == b"mine"
        await pool.call("b", "write", files=b"changed")
        runtime.sandboxes[-1].die()  # the next generation starts as this one did
        await pool.tick(4)
        await until(lambda: pool._leases.known("b").life.state is State.RUNNING)
        assert await pool.call("b", "snapshot", generation=1) == b"mine"
        assert status.generation == 0


@in_a_loop
async def test_a_snapshot_that_is_not_there_is_refused_and_costs_nothing():
    runtime = FakeRuntime()
    async with HandPool(runtime) as pool:
        with pytest.raises(ValueError, match="no snapshot 'x'"):
            await pool.start(StartRequest(SPEC, snapshot="x"))
        assert pool.used == 0
        await pool.warm(SPEC, 1)
        await pool.tick()
        with pytest.raises(ValueError, match="no snapshot 'x'"):
            await pool.start(StartRequest(SPEC, snapshot="x"))
        assert await ready(pool) == 1


@in_a_loop
async def test_what_cannot_take_its_snapshot_has_not_started():
    runtime = FakeRuntime()
    async with HandPool(runtime, slots=1) as pool:
        await pool.warm(SPEC, 1)
        await pool.tick()
        info = await pool.put_snapshot(b"x")
        runtime.sandboxes[0].refuses_restore = True
        with pytest.raises(SandboxStartError, match="died of its snapshot"):
            await pool.start(StartRequest(SPEC, snapshot=info.id))
        await settle()
        assert runtime.existing == pool.used == 0


@in_a_loop
async def test_a_restore_that_hangs_is_told_by_its_limit():
    runtime = FakeRuntime()
    async with HandPool(runtime, slots=1, launch_seconds=0.01) as pool:
        await pool.warm(SPEC, 1)
        await pool.tick()
        info = await pool.put_snapshot(b"x")
        runtime.sandboxes[0].hangs_in_restore = True
        with pytest.raises(SandboxStartError, match=r"snapshot: it took longer than 0\.01 s"):
            await pool.start(StartRequest(SPEC, snapshot=info.id))
        await settle()
        assert runtime.existing == pool.used == 0


@in_a_loop
async def test_the_snapshot_of_a_living_one_stays():
    runtime = FakeRuntime()
    async with HandPool(runtime, snapshot_mb=1) as pool:
        info = await pool.put_snapshot(b"x" * (600 << 10))
        status = await pool.start(StartRequest(SPEC, snapshot=info.id))
        with pytest.raises(SandboxError, match="does not fit"):
            await pool.put_snapshot(b"y" * (600 << 10))
        await pool.stop(status.id)
        await pool.put_snapshot(b"y" * (600 << 10))
        with pytest.raises(ValueError, match="no snapshot"):
            await pool.get_snapshot(info.id)

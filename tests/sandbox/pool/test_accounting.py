"""What sandboxes ask for and use, by owner, and that a node gives away no more than it has."""

import asyncio
import dataclasses
import json
import math

import pytest

from ale_jax.sandbox import cgroups
from ale_jax.sandbox.pool.accounting import Room, Usage, cpus_here, memory_here_mb, total
from ale_jax.sandbox.pool.api import (
    Cause,
    OwnerLimits,
    PoolFull,
    QuotaExceeded,
    SandboxGone,
    StartRequest,
    State,
)
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.sandbox.spec import SandboxSpec
from tests.rows import each_row
from tests.sandbox.pool.fakes import FakeRuntime, HandPool, in_a_loop, settle

SPEC = SandboxSpec(memory_mb=100, cpus=0.5, files_mb=10)
ANN, BOB = {"tenant": "ann"}, {"tenant": "bob"}


def test_room_of_a_spec():
    # /work and /tmp of 10 MB each, and three times that for three sandboxes.
    assert Room.of(SPEC) == Room(1, 100, 0.5, 20)
    assert Room.of(SPEC, 3) == Room(3, 300, 1.5, 60)
    assert total([SPEC, SPEC]) - Room.of(SPEC) == Room.of(SPEC)


def test_tenths_of_a_cpu_add_up():
    tenth = Room.of(dataclasses.replace(SPEC, cpus=0.1))
    assert sum([tenth] * 10, Room()).cpus == 1.0


def test_what_exceeds_a_limit_is_named():
    assert list(Room(2, 200, 1.0).beyond(Room(2, 150, math.inf, 0))) == [("memory_mb", 200, 150)]
    assert Room(2, 150, 0.5).share_of(Room(8, 200, 2.0, math.inf)) == 0.75


def test_a_share_of_the_memory_is_left_to_the_host(monkeypatch):
    monkeypatch.setattr(cgroups, "memory_limit", lambda: 1000 << 20)
    assert memory_here_mb() == 900
    assert PoolOptions(cpu_overcommit=2.0).capacity().cpus == 2 * cpus_here()
    options = PoolOptions(memory_mb=500, cpus=1.5, cpu_overcommit=4.0)
    assert options.capacity() == Room(64, 500, 6.0, math.inf)


@each_row("name", ["memory_mb", "cpus", "cpu_overcommit"])
def test_a_capacity_below_zero_is_refused(name):
    with pytest.raises(ValueError, match=name):
        PoolOptions(**{name: -1})


@each_row(
    "options,name",
    [
        ({"memory_mb": 250}, "memory_mb 100 is more than is free: 200 of 250"),
        ({"cpus": 1.2, "cpu_overcommit": 1.0}, "cpus 0.5 is more than is free: 1 of 1.2"),
        ({"slots": 2}, "all 2 slots are taken"),
    ],
)
def test_a_node_is_full_by_whatever_is_used_up_first(options, name):
    asyncio.run(_fill(options, name))


async def _fill(options, name):
    async with HandPool(FakeRuntime(), **options) as pool:
        first = await pool.start(StartRequest(SPEC))
        await pool.start(StartRequest(SPEC))
        with pytest.raises(PoolFull, match=name):
            await pool.start(StartRequest(SPEC))
        await pool.stop(first.id)
        await settle()
        assert (await pool.start(StartRequest(SPEC))).state is State.RUNNING


@in_a_loop
async def test_warm_sandboxes_make_room_for_a_larger_one():
    large, small = dataclasses.replace(SPEC, memory_mb=180), dataclasses.replace(SPEC, cpus=0.1)
    async with HandPool(FakeRuntime(), memory_mb=300) as pool:
        await pool.warm(small, 2)
        await settle()
        assert pool.free().memory_mb == 300  # they do not count
        await pool.start(StartRequest(SPEC))
        assert (await pool.nodes())[0].memory_reserved_mb == 100
        await pool.start(StartRequest(large))  # of 300, 100 are taken, so both warm ones must end
        (node,) = await pool.nodes()
        assert (node.used, node.ready, node.memory_reserved_mb) == (2, 0, 280)


@in_a_loop
async def test_room_of_every_failure_is_given_back():
    runtime = FakeRuntime("fail", "bug", "wait")
    async with HandPool(runtime, memory_mb=100) as pool:
        for kind in (Exception, KeyError):
            with pytest.raises(kind):
                await pool.start(StartRequest(SPEC))
        waiting = asyncio.ensure_future(pool.start(StartRequest(SPEC)))
        await settle()
        with pytest.raises(PoolFull):
            await pool.start(StartRequest(SPEC))
        waiting.cancel()
        runtime.go.set()
        await settle()
        with pytest.raises(ValueError, match="no snapshot"):
            await pool.start(StartRequest(SPEC, snapshot="f" * 64))
        assert pool.free() == pool._machines.capacity
        again = await pool.start(StartRequest(SPEC, recreate=True))
        runtime.sandboxes[-1].die()
        with pytest.raises(Exception, match="died"):
            await pool.call(again.id, "run", command="x")
        await settle()
        assert pool.free().memory_mb == 0  # its next generation has the same room
        await pool.stop(again.id)
        assert pool.free() == pool._machines.capacity


@in_a_loop
async def test_what_is_held_is_known_before_a_start_is_done():
    runtime = FakeRuntime("wait")
    async with HandPool(runtime) as pool:
        start = asyncio.ensure_future(pool.start(StartRequest(SPEC, labels=ANN)))
        await asyncio.sleep(0)
        assert (await pool.held("ann"), await pool.held("bob")) == (Room.of(SPEC), Room())
        runtime.go.set()
        await pool.stop((await start).id)
        assert await pool.held("ann") == Room()


FOUR = OwnerLimits(Room(4, math.inf, math.inf, math.inf), shares=False)


@in_a_loop
async def test_starts_at_once_do_not_exceed_the_limits_together():
    runtime = FakeRuntime()
    async with HandPool(runtime, slots=9) as pool:
        many = StartRequest(SPEC, id="m", labels=ANN)
        starts = asyncio.gather(
            pool.start_many(many, 2, 1, FOUR),
            pool.start(StartRequest(SPEC, id="a", labels=ANN), FOUR),
            pool.start(StartRequest(SPEC, labels=ANN), FOUR),
            return_exceptions=True,
        )
        *_, refused = await starts
        assert str(refused) == "sandboxes 5 is more than this token may use, 4"
        await settle()
        await pool.start(StartRequest(SPEC, labels=ANN), FOUR)  # in the place of the spare one
        again = await pool.start_many(many, 2, 1, FOUR)  # none of them is new
        assert [each.id for each in again] == ["m-0", "m-1"]


@in_a_loop
async def test_a_fork_beyond_the_limits_takes_no_snapshot():
    async with HandPool(FakeRuntime()) as pool:
        await pool.start(StartRequest(SPEC, id="a", labels=ANN), FOUR)
        snapshots = []
        pool.snapshot, take = lambda *asked: snapshots.append(asked) or take(*asked), pool.snapshot
        with pytest.raises(QuotaExceeded, match="sandboxes 5"):
            await pool.fork("a", 4, None, FOUR)
        assert not snapshots
        forks = [pool.fork("a", 2, None, FOUR) for _ in range(2)]
        done, refused = await asyncio.gather(*forks, return_exceptions=True)
        assert len(done) == 2 and isinstance(refused, QuotaExceeded) and len(snapshots) == 2


def test_limits_arrive_as_they_were_sent():
    limits = OwnerLimits(Room(3, 100.5, math.inf, math.inf), shares=True)
    text = json.dumps(limits.to_json(), allow_nan=False)
    assert OwnerLimits.from_json(json.loads(text)) == limits


@in_a_loop
async def test_usage_is_of_the_owner_and_lasts():
    runtime = FakeRuntime()
    async with HandPool(runtime, ask_ticks=1) as pool:
        await pool.warm(SPEC, 1)
        await settle()
        pool.clock.now += 100  # nobody's
        ann = await pool.start(StartRequest(SPEC, labels=ANN))
        bob = await pool.start(StartRequest(SPEC, labels=BOB, recreate=True))
        for sandbox, cpu_seconds in zip(runtime.sandboxes, (3.0, 1.0), strict=False):
            sandbox.cpu_seconds = cpu_seconds
        await pool.tick(3, seconds=1.0)
        runtime.sandboxes[1].die()
        await pool.tick(3, seconds=1.0)
        await pool.stop(ann.id)
        await pool.tick(1, seconds=1.0)
        usage = await pool.usage()
        assert usage["ann"] == Usage(6.0, 3.0)
        assert (await pool.status(bob.id)).generation == 1
        assert usage["bob"] == Usage(7.0, 1.0)  # of both generations


@in_a_loop
async def test_a_renewed_sandbox_lives_on_and_its_end_says_why():
    async with HandPool(FakeRuntime()) as pool:
        request = StartRequest(SPEC, id="a", deadline_seconds=10.0)
        await pool.start(request)
        await pool.tick(seconds=9.0)
        await pool.renew("a", 5.0)
        await pool.tick(seconds=4.0)
        assert (await pool.status("a")).state is State.RUNNING
        await pool.tick(seconds=1.0)
        status = await pool.status("a")
        assert status.cause is Cause.DEADLINE and "not renewed" in status.history[-2].detail
        with pytest.raises(SandboxGone):
            await pool.renew("a", 5.0)
        await pool.start(dataclasses.replace(request, id="b"))
        await pool.renew("b", 0.0)
        await pool.tick(seconds=1000.0)
        assert (await pool.status("b")).state is State.RUNNING


@in_a_loop
async def test_a_fork_has_the_deadline_of_the_request_and_not_that_of_a_renewal():
    async with HandPool(FakeRuntime()) as pool:
        await pool.start(StartRequest(SPEC, id="a", deadline_seconds=10.0))
        await pool.tick(seconds=9.0)
        await pool.renew("a", 100.0)
        (fork,) = await pool.fork("a", 1)
        await pool.tick(seconds=9.0)
        assert (await pool.status(fork.id)).state is State.RUNNING
        await pool.tick(seconds=1.0)
        assert (await pool.status(fork.id)).cause is Cause.DEADLINE
        await pool.tick(seconds=89.0)
        assert (await pool.status("a")).state is State.RUNNING
        await pool.tick(seconds=1.0)
        assert (await pool.status("a")).cause is Cause.DEADLINE


@in_a_loop
async def test_an_idle_end_says_how_long_nobody_used_it():
    async with HandPool(FakeRuntime()) as pool:
        await pool.start(StartRequest(SPEC, id="a", idle_seconds=10.0))
        await pool.tick(seconds=10.0)
        events = (await pool.events_after(0)).events
        (ended,) = (each for each in events if each.kind == "sandbox_ended")
        assert ended.detail == "it was not used for 10 s" and ended.fields["cause"] == "idle"


@in_a_loop
async def test_snapshots_of_one_owner_never_make_room_for_anothers():
    async with HandPool(FakeRuntime(), snapshot_mb=1, slots=8) as pool:
        for owner in (ANN, BOB):
            await pool.start(StartRequest(SPEC, id=owner["tenant"], labels=owner))
        await pool.call("bob", "write", files=b"b")
        bobs = await pool.snapshot("bob")
        anns = []
        for content in (b"1", b"2", b"3"):
            await pool.call("ann", "write", files=content * (600 << 10))
            anns.append(await pool.snapshot("ann"))
        with pytest.raises(ValueError, match="no snapshot"):  # her own made room
            await pool.start(StartRequest(SPEC, labels=ANN, snapshot=anns[0].id))
        with pytest.raises(ValueError, match="no snapshot"):  # as if there were none
            await pool.start(StartRequest(SPEC, labels=ANN, snapshot=bobs.id))
        with pytest.raises(ValueError, match="no snapshot"):
            await pool.restore("ann", bobs.id)
        again = await pool.start(StartRequest(SPEC, labels=BOB, snapshot=bobs.id))
        assert await pool.call(again.id, "snapshot") == b"b"


@in_a_loop
async def test_an_owner_of_any_name_has_a_directory_inside_the_store(tmp_path):
    directory = tmp_path / "store"
    async with HandPool(FakeRuntime(), snapshot_directory=str(directory)) as pool:
        for name in ("..", "../..", "a/b", "ann"):
            status = await pool.start(StartRequest(SPEC, labels={"tenant": name}))
            await pool.snapshot(status.id)
            await pool.stop(status.id)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    assert len(list(directory.iterdir())) == 4

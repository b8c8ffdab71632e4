"""Deaths, re-creation, limits: what becomes of a sandbox that runs."""

import asyncio

import pytest

from ale_jax.sandbox.api import SandboxError, SandboxLost, SandboxStartError
from ale_jax.sandbox.pool.api import Cause, SandboxGone, StartRequest, State
from tests.sandbox.pool.fakes import SPEC, FakeRuntime, HandPool, in_a_loop, settle

REQUEST = StartRequest(SPEC, id="a")
AGAIN = StartRequest(SPEC, id="a", recreate=True)


@in_a_loop
async def test_death_is_noticed_without_use_and_siblings_live_on():
    runtime = FakeRuntime()
    async with HandPool(runtime) as pool:
        await pool.start(REQUEST)
        await pool.start(StartRequest(SPEC, id="b"))
        runtime.sandboxes[0].die()
        await pool.tick(4)
        status = await pool.status("a")
        assert (status.state, status.cause) == (State.FAILED, Cause.LOST)
        assert status.history[-1].detail == "it died"
        assert ("sandbox_lost", {"sandbox": "a", "generation": 0}) in pool.events
        assert runtime.existing == pool.used == 1
        await pool.tick(20)
        assert (await pool.call("b", "run", command="x")).exit_code == 0
        assert (await pool.status("b")).stats.disk_bytes == 2
        with pytest.raises(SandboxGone) as caught:
            await pool.call("a", "run", command="x")
        assert caught.value.cause is Cause.LOST


@in_a_loop
async def test_silence_is_death_but_not_at_once_while_it_is_busy():
    runtime = FakeRuntime()
    async with HandPool(runtime, ask_ticks=2, silent_ticks=4, silent_busy_ticks=40) as pool:
        await pool.start(REQUEST)
        await pool.start(StartRequest(SPEC, id="busy"))
        runtime.sandboxes[1].hold()
        call = asyncio.ensure_future(pool.call("busy", "run", command="x"))
        await settle()
        for sandbox in runtime.sandboxes:
            sandbox.freeze()
        await pool.tick(2 + 3)
        assert (await pool.status("a")).state is State.RUNNING
        await pool.tick()
        assert (await pool.status("a")).cause is Cause.LOST
        await pool.tick(34)
        assert (await pool.status("busy")).state is State.RUNNING
        await pool.tick()
        assert (await pool.status("busy")).cause is Cause.LOST
        with pytest.raises(SandboxLost):
            await call


@in_a_loop
async def test_a_call_that_a_reset_breaks_off_does_not_end_the_new_machine():
    runtime = FakeRuntime()
    async with HandPool(runtime) as pool:
        await pool.start(REQUEST)
        (sandbox,) = runtime.sandboxes
        sandbox.hold()
        call = asyncio.ensure_future(pool.call("a", "run", command="x"))
        await settle()
        sandbox.replace_machine()
        with pytest.raises(SandboxError, match="the sandbox was reset during the call") as caught:
            await call
        assert not isinstance(caught.value, SandboxLost)
        assert (await pool.status("a")).state is State.RUNNING and runtime.existing == 1


@in_a_loop
async def test_a_lost_one_is_created_again_one_generation_on():
    runtime = FakeRuntime()
    async with HandPool(runtime, slots=1) as pool:
        await pool.start(AGAIN)
        await pool.call("a", "write", files=b"mine")
        runtime.sandboxes[0].die()
        await pool.tick(4)
        status = await pool.status("a")
        assert (status.state, status.cause, status.generation) == (State.RUNNING, None, 1)
        assert [change.state for change in status.history[2:]] == [
            *("running", "failed", "pending", "starting", "running")
        ]
        assert await pool.call("a", "snapshot") == b""  # its files are gone
        assert runtime.most == 1 and (await pool.nodes())[0].restarts == 1
        assert (await pool.start(AGAIN)).generation == 1


@in_a_loop
async def test_a_call_finds_the_death_before_the_tick_and_the_next_waits_for_the_new_one():
    runtime = FakeRuntime("ok", "wait")
    async with HandPool(runtime) as pool:
        await pool.start(AGAIN)
        runtime.sandboxes[0].die()
        with pytest.raises(SandboxLost, match="it died"):
            await pool.call("a", "run", command="x")
        after = asyncio.ensure_future(pool.call("a", "run", command="y"))
        await settle()
        assert (await pool.status("a")).state is State.STARTING and not after.done()
        runtime.go.set()
        assert (await after).output == "y"


@in_a_loop
async def test_a_late_reply_of_an_old_generation_reaches_nobody():
    runtime = FakeRuntime()
    async with HandPool(runtime) as pool:
        await pool.start(AGAIN)
        old = runtime.sandboxes[0]
        gate = old.hold()
        old._until_lost = lambda work: work  # its link says nothing of its death
        call = asyncio.ensure_future(pool.call("a", "run", command="old"))
        await settle()
        pool._lifecycle.lose(pool._leases.known("a"), "said the test")
        await settle()
        assert (await pool.status("a")).generation == 1
        gate.set()
        with pytest.raises(SandboxLost, match="generation 0"):
            await call
        assert (await pool.call("a", "run", command="new")).output == "new"


@in_a_loop
async def test_a_call_for_a_generation_is_not_answered_by_another():
    runtime = FakeRuntime()
    async with HandPool(runtime) as pool:
        await pool.start(AGAIN)
        await pool.call("a", "run", command="x", generation=0)
        runtime.sandboxes[0].die()
        await pool.tick(4)
        with pytest.raises(SandboxLost, match="generation 0 is lost; the current one is 1"):
            await pool.call("a", "run", command="x", generation=0)
        await pool.call("a", "run", command="x", generation=1)


@in_a_loop
async def test_a_recreation_that_fails_is_tried_again():
    runtime = FakeRuntime("ok", "fail", "ok")
    async with HandPool(runtime, slots=1) as pool:
        await pool.start(AGAIN)
        runtime.sandboxes[0].die()
        await pool.tick(4)
        after = asyncio.ensure_future(pool.call("a", "run", command="y"))
        assert (await after).output == "y"
        assert (await pool.status("a")).generation == 1
        assert pool.events.kinds == [
            *("sandbox_started", "sandbox_lost", "sandbox_start_failed", "sandbox_recreated")
        ]


@in_a_loop
async def test_recreation_is_given_up_after_some_losses_without_success(monkeypatch):
    monkeypatch.setattr("ale_jax.sandbox.pool.lifecycle.FIRST_PAUSE_S", 0.0)
    runtime = FakeRuntime()
    async with HandPool(runtime, max_losses=3) as pool:
        await pool.start(AGAIN)
        for _ in range(2):
            runtime.sandboxes[-1].die()
            await pool.tick(4)
        await pool.call("a", "run", command="x")  # begins the count anew
        for generation in (3, 4, 5):
            runtime.sandboxes[-1].die()
            await pool.tick(4)
            assert (await pool.status("a")).generation == generation
        runtime.sandboxes[-1].die()
        await pool.tick(4)
        assert (await pool.status("a")).cause is Cause.LOST
        assert runtime.existing == pool.used == 0


@in_a_loop
async def test_a_recreation_that_never_succeeds_ends(monkeypatch):
    monkeypatch.setattr("ale_jax.sandbox.pool.lifecycle.FIRST_PAUSE_S", 0.0)
    runtime = FakeRuntime("ok", *["fail"] * 9)
    async with HandPool(runtime, max_losses=3) as pool:
        await pool.start(AGAIN)
        runtime.sandboxes[0].die()
        await pool.tick(4)
        with pytest.raises(SandboxGone) as caught:
            await pool.call("a", "run", command="x")
        assert caught.value.cause is Cause.START_FAILED
        assert len(runtime.plan) == 9 - 3 and pool.used == 0


@in_a_loop
async def test_stopping_in_the_middle_of_a_recreation_leaves_nothing():
    runtime = FakeRuntime()
    async with HandPool(runtime, slots=1) as pool:
        await pool.start(AGAIN)
        runtime.sandboxes[0].refuses_to_close = True
        runtime.sandboxes[0].die()
        await pool.tick(4)
        assert (await pool.status("a")).state is State.PENDING  # the old one has not ended
        await pool.stop("a")
        assert (await pool.status("a")).state is State.STOPPED
        while pool.used:
            await asyncio.sleep(0.001)
        await pool.start(StartRequest(SPEC, id="b"))
        assert len(runtime.sandboxes) == 2


@in_a_loop
async def test_idleness_ends_it_looking_does_not_help_using_does():
    runtime = FakeRuntime()
    async with HandPool(runtime) as pool:
        await pool.start(StartRequest(SPEC, id="a", idle_seconds=10))
        await pool.tick(3, seconds=3)
        await pool.call("a", "run", command="x")
        for _ in range(3):
            await pool.tick(seconds=3)
            assert (await pool.status("a")).state is State.RUNNING
        await pool.tick(seconds=3)
        assert (await pool.status("a")).cause is Cause.IDLE
        await settle()
        assert runtime.existing == 0


@in_a_loop
async def test_a_call_under_way_is_use():
    runtime = FakeRuntime()
    async with HandPool(runtime) as pool:
        await pool.start(StartRequest(SPEC, id="a", idle_seconds=10))
        gate = runtime.sandboxes[0].hold()
        call = asyncio.ensure_future(pool.call("a", "run", command="x"))
        await settle()
        await pool.tick(10, seconds=10)
        assert (await pool.status("a")).busy == 1
        gate.set()
        await call
        await pool.tick(seconds=9)
        assert (await pool.status("a")).state is State.RUNNING
        await pool.tick(seconds=1)
        assert (await pool.status("a")).cause is Cause.IDLE


@in_a_loop
async def test_the_deadline_ends_it_in_the_middle_of_a_call():
    runtime = FakeRuntime()
    async with HandPool(runtime) as pool:
        await pool.start(StartRequest(SPEC, id="a", deadline_seconds=10, recreate=True))
        runtime.sandboxes[0].hold()
        call = asyncio.ensure_future(pool.call("a", "run", command="x"))
        await settle()
        await pool.tick(seconds=9)
        assert not call.done()
        await pool.tick(seconds=1)
        with pytest.raises(SandboxGone) as caught:
            await call
        assert caught.value.cause is Cause.DEADLINE
        assert (await pool.status("a")).state is State.STOPPED  # and it is not created again


@in_a_loop
async def test_a_recreated_one_keeps_its_deadline():
    runtime = FakeRuntime()
    async with HandPool(runtime) as pool:
        await pool.start(StartRequest(SPEC, id="a", deadline_seconds=10, recreate=True))
        runtime.sandboxes[0].die()
        await pool.tick(4, seconds=2)
        assert (await pool.status("a")).generation == 1
        await pool.tick(seconds=2)
        assert (await pool.status("a")).cause is Cause.DEADLINE


@in_a_loop
async def test_the_ended_are_remembered_for_a_while():
    async with HandPool(FakeRuntime("ok", "fail"), remember_seconds=100) as pool:
        await pool.start(REQUEST)
        await pool.stop("a")
        with pytest.raises(SandboxStartError):
            await pool.start(StartRequest(SPEC, id="b"))
        await pool.start(StartRequest(SPEC, id="b"))
        await pool.tick(seconds=99)
        assert (await pool.status("a")).cause is Cause.STOPPED
        await pool.tick(seconds=2)
        with pytest.raises(SandboxGone):
            await pool.status("a")
        assert (await pool.status("b")).state is State.RUNNING  # its id is in use again


@in_a_loop
async def test_a_pool_that_cannot_watch_takes_no_more():
    runtime = FakeRuntime()
    async with HandPool(runtime, tick_seconds=0.001) as pool:
        await pool.start(REQUEST)
        pool._leases.known("a").heartbeat = None
        while not pool._supervisor.fault:
            await asyncio.sleep(0.001)
        with pytest.raises(SandboxStartError, match="out of order"):
            await pool.start(StartRequest(SPEC, id="b"))
        assert not (await pool.nodes())[0].alive and "pool_fault" in pool.events.kinds

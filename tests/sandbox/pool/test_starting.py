"""Starts: who gets which sandbox, and what is left when a start fails or is given up."""

import asyncio
import resource

import pytest

from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.pool.api import Cause, PoolFull, SandboxGone, StartRequest, State
from tests.sandbox.pool.fakes import OTHER, SPEC, FakeRuntime, HandPool, in_a_loop, settle

REQUEST = StartRequest(SPEC)


@in_a_loop
async def test_a_started_one_runs_until_it_is_stopped():
    runtime = FakeRuntime()
    async with HandPool(runtime, node="n1") as pool:
        status = await pool.start(StartRequest(SPEC, labels={"task": "t"}))
        assert (status.state, status.cause, status.generation) == (State.RUNNING, None, 0)
        assert (status.node, status.runtime, status.labels) == ("n1", "fake", {"task": "t"})
        assert runtime.labels == [{"task": "t", "node": "n1", "sandbox": status.id}]
        assert (await pool.call(status.id, "run", command="x")).output == "x"
        await pool.stop(status.id)
        assert runtime.existing == 0 and pool.used == 0
        status = await pool.status(status.id)
        assert (status.state, status.cause) == (State.STOPPED, Cause.STOPPED)
        await pool.stop(status.id)  # again: nothing
        with pytest.raises(SandboxGone) as caught:
            await pool.call(status.id, "run", command="x")
        assert caught.value.cause is Cause.STOPPED


@in_a_loop
async def test_the_same_id_is_started_once():
    runtime = FakeRuntime("wait")
    async with HandPool(runtime) as pool:
        starts = [asyncio.ensure_future(pool.start(StartRequest(SPEC, id="a"))) for _ in range(3)]
        await settle()
        with pytest.raises(ValueError, match="another"):
            await pool.start(StartRequest(OTHER, id="a"))
        runtime.go.set()
        assert [status.id for status in await asyncio.gather(*starts)] == ["a"] * 3
        assert (await pool.start(StartRequest(SPEC, id="a"))).state is State.RUNNING
        assert len(runtime.sandboxes) == 1
        await pool.stop("a")
        with pytest.raises(SandboxGone):  # a late repetition is not to start another
            await pool.start(StartRequest(SPEC, id="a"))


@in_a_loop
async def test_a_start_that_failed_is_told_and_may_be_repeated():
    runtime = FakeRuntime("fail", "bug")
    async with HandPool(runtime) as pool:
        request = StartRequest(SPEC, id="a")
        with pytest.raises(SandboxStartError, match="no such image"):
            await pool.start(request)
        assert (await pool.status("a")).cause is Cause.START_FAILED and pool.used == 0
        with pytest.raises(KeyError):
            await pool.start(request)
        assert (await pool.start(request)).state is State.RUNNING
        assert pool.events.kinds == ["sandbox_start_failed"] * 2 + ["sandbox_started"]


@in_a_loop
async def test_a_full_pool_says_so_at_once():
    runtime = FakeRuntime()
    async with HandPool(runtime, slots=2) as pool:
        first = await pool.start(REQUEST)
        await pool.start(REQUEST)
        with pytest.raises(PoolFull, match="2 slots"):
            await pool.start(REQUEST)
        await pool.stop(first.id)
        await pool.start(REQUEST)
        assert runtime.most == 2


@in_a_loop
async def test_no_more_are_started_at_once_than_creates():
    runtime = FakeRuntime(*["wait"] * 5)
    async with HandPool(runtime, slots=5, creates=2) as pool:
        starts = [asyncio.ensure_future(pool.start(REQUEST)) for _ in range(5)]
        await settle()
        states = sorted(status.state for status in await pool.statuses())
        assert states == ["pending"] * 3 + ["starting"] * 2
        runtime.go.set()
        await asyncio.gather(*starts)
        assert runtime.starting_most == 2


@pytest.mark.parametrize("when", ["before its turn", "while it starts", "waiting for a permit"])
@in_a_loop
async def test_a_cancelled_start_leaves_nothing(when):
    runtime = FakeRuntime("wait", "wait")
    async with HandPool(runtime, slots=2, creates=1) as pool:
        before = [REQUEST] if when == "waiting for a permit" else []
        others = [asyncio.ensure_future(pool.start(request)) for request in before]
        await settle()
        start = asyncio.ensure_future(pool.start(StartRequest(SPEC, id="a")))
        await (asyncio.sleep(0) if when == "before its turn" else settle())
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        runtime.go.set()
        await asyncio.gather(*others)
        await settle()
        assert (await pool.status("a")).state is State.STOPPED
        assert runtime.existing == pool.used == len(others)


@in_a_loop
async def test_a_start_is_given_up_only_when_its_last_caller_is():
    runtime = FakeRuntime("wait")
    async with HandPool(runtime) as pool:
        request = StartRequest(SPEC, id="a")
        one, other = [asyncio.ensure_future(pool.start(request)) for _ in range(2)]
        await settle()
        one.cancel()
        await settle()
        runtime.go.set()
        assert (await other).state is State.RUNNING


@in_a_loop
async def test_a_caller_who_is_cancelled_as_the_sandbox_arrives_leaves_nothing():
    runtime = FakeRuntime("wait")
    async with HandPool(runtime) as pool:
        start = asyncio.ensure_future(pool.start(StartRequest(SPEC, id="a")))
        await settle()
        pool._leases.known("a").arrival.add_done_callback(lambda _: start.cancel())
        runtime.go.set()
        with pytest.raises(asyncio.CancelledError):
            await start
        await settle()
        assert runtime.existing == pool.used == 0


@in_a_loop
async def test_a_start_that_hangs_fails_and_what_comes_late_is_ended():
    runtime = FakeRuntime("wait")
    async with HandPool(runtime, slots=1, creates=1, launch_seconds=0.01) as pool:
        with pytest.raises(SandboxStartError, match=r"within 0.01 s"):
            await pool.start(REQUEST)
        assert runtime.existing == pool.used == 1  # it may still come, so its slot is taken
        runtime.go.set()
        await settle()
        assert runtime.sandboxes[0].closed and pool.used == 0
        await pool.start(REQUEST)


@in_a_loop
async def test_the_first_that_are_ready_win_and_the_others_are_redundant():
    runtime = FakeRuntime("wait", "fail", "ok", "ok")
    async with HandPool(runtime) as pool:
        won = await pool.start_many(StartRequest(SPEC, id="m"), count=2, spare=2)
        assert [status.id for status in won] == ["m-2", "m-3"]
        runtime.go.set()
        await settle()
        assert (await pool.status("m-0")).cause is Cause.REDUNDANT
        assert runtime.existing == pool.used == 2


@in_a_loop
async def test_many_are_all_or_none():
    runtime = FakeRuntime("ok", "fail", "ok")
    async with HandPool(runtime) as pool:
        with pytest.raises(SandboxStartError):
            await pool.start_many(REQUEST, count=3)
        await settle()
        assert runtime.existing == pool.used == 0
        with pytest.raises(PoolFull):
            await pool.start_many(REQUEST, count=5)
        await settle()
        assert runtime.existing == pool.used == 0
        assert len(await pool.start_many(REQUEST, count=3, spare=9)) == 3  # fewer spare ones
        with pytest.raises(ValueError, match="count 0"):
            await pool.start_many(REQUEST, count=0)


@in_a_loop
async def test_many_that_are_asked_for_again_are_the_same_and_outlive_who_asks():
    runtime = FakeRuntime()
    async with HandPool(runtime) as pool:
        request = StartRequest(SPEC, id="m")
        first = await pool.start_many(request, count=2, spare=1)
        again = asyncio.ensure_future(pool.start_many(request, count=2, spare=1))
        assert {status.id for status in await again} == {status.id for status in first}
        await settle()
        assert runtime.existing == 2
        with pytest.raises(SandboxGone):  # one of them was redundant, and is not started again
            await pool.start_many(request, count=3)
        await settle()
        assert runtime.existing == 2


@in_a_loop
async def test_many_that_are_cancelled_leave_nothing():
    runtime = FakeRuntime("ok", *["wait"] * 3)
    async with HandPool(runtime) as pool:
        starts = asyncio.ensure_future(pool.start_many(REQUEST, count=4))
        await settle()
        starts.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starts
        runtime.go.set()
        await settle()
        assert runtime.existing == pool.used == 0


@in_a_loop
async def test_close_ends_all_and_what_is_on_its_way():
    runtime = FakeRuntime("ok", "ok", "wait", "fail")
    pool = HandPool(runtime, slots=4, close_seconds=1.0)
    await pool.open()
    running = [await pool.start(REQUEST) for _ in range(2)]
    starting = asyncio.ensure_future(pool.start(REQUEST))
    await settle()
    held = runtime.sandboxes[0].hold()
    call = asyncio.ensure_future(pool.call(running[0].id, "run", command="x"))
    await settle()
    closing = [asyncio.ensure_future(pool.close()) for _ in range(2)]
    await settle()
    runtime.go.set()
    await asyncio.gather(*closing)
    assert runtime.existing == pool.used == 0 and not held.is_set()
    assert [sandbox.closed for sandbox in runtime.sandboxes] == [True] * 3  # none was cancelled
    for wait in (starting, call):
        with pytest.raises(SandboxGone) as caught:
            await wait
        assert caught.value.cause is Cause.SHUTDOWN
    with pytest.raises(SandboxStartError, match="closed"):
        await pool.start(REQUEST)
    assert runtime.reaped == 2  # at the start and at the end


@in_a_loop
async def test_one_that_does_not_end_does_not_hold_up_the_others():
    runtime = FakeRuntime()
    async with HandPool(runtime) as pool:
        ids = [(await pool.start(REQUEST)).id for _ in range(3)]
        runtime.sandboxes[0].refuses_to_close = True
        runtime.sandboxes[1].closes_with_error = True
        await asyncio.gather(*(pool.stop(id) for id in ids))
        assert {(await pool.status(id)).state for id in ids} == {State.STOPPED}
        assert [fields["sandbox"] for kind, fields in pool.events if kind == "sandbox_left"] == [
            ids[1],
            ids[0],
        ]
        assert pool.used == 0
        await pool.start(REQUEST)


@pytest.fixture
def few_files():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, before[1]), before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@in_a_loop
async def test_a_pool_may_open_as_many_files_as_it_can_or_names_the_limit(few_files):
    async with HandPool(FakeRuntime()):
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (few_files, few_files)
    with pytest.raises(ValueError, match=f"{few_files} slots need .* hard limit is {few_files}"):
        await HandPool(FakeRuntime(), slots=few_files).open()


@in_a_loop
async def test_who_is_asked_for_and_is_not_there_is_gone():
    async with HandPool(FakeRuntime()) as pool:
        for question in (pool.status("x"), pool.stop("x"), pool.call("x", "reset")):
            with pytest.raises(SandboxGone) as caught:
                await question
            assert caught.value.cause is None


@in_a_loop
async def test_only_methods_that_carry_data_are_called():
    async with HandPool(FakeRuntime()) as pool:
        id = (await pool.start(REQUEST)).id
        for method in ("close", "boot", "_ask", "nonsense"):
            with pytest.raises(ValueError, match="choose one of run"):
                await pool.call(id, method)
        with pytest.raises(ValueError, match="arguments of 'run'"):
            await pool.call(id, "run", comand="x")
        with pytest.raises(ValueError, match="choose among cwd"):
            await anext(pool.stream(id, "x", keep=True))

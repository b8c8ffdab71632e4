"""Front ends before a pool that is not theirs: each request once, whoever asks, whoever leaves."""

import asyncio
import contextlib
import dataclasses
import math

import pytest

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.node import frames
from ale_jax.sandbox.node.client import NodeClient
from ale_jax.sandbox.node.process import StateDirectory
from ale_jax.sandbox.node.server import NodeServer
from ale_jax.sandbox.pool.accounting import Room, Usage
from ale_jax.sandbox.pool.api import (
    Cause,
    OwnerLimits,
    PoolFull,
    QuotaExceeded,
    SandboxGone,
    StartRequest,
    State,
)
from ale_jax.sandbox.service.protocol import Refusal
from tests.sandbox.pool.fakes import SPEC, FakeRuntime, HandPool, in_a_loop, until

TOKEN = "t" * 32
LIMITS = OwnerLimits(Room(3, math.inf, math.inf, math.inf), shares=False)
NO_LIMITS = {"limits": {"room": {"sandboxes": "many"}, "shares": True}}


class House:
    """A pool, its server, and front ends that come and go."""

    def __init__(self, pool: HandPool, state: StateDirectory, ends: contextlib.AsyncExitStack):
        self.pool, self.state, self._ends = pool, state, ends

    async def front(self, token: str = TOKEN) -> NodeClient:
        client = NodeClient(self.state.path / "node.sock", token)
        return await self._ends.enter_async_context(client)


@pytest.fixture
def state(tmp_path):
    return StateDirectory(str(tmp_path / "state"))


@contextlib.asynccontextmanager
async def house(state, **options):
    runtime = FakeRuntime()
    async with contextlib.AsyncExitStack() as ends, HandPool(runtime, **options) as pool:
        async with state.serving(NodeServer(pool, TOKEN, "fake"), TOKEN, {}):
            yield House(pool, state, ends)
            await ends.aclose()


@in_a_loop
async def test_an_answer_that_is_too_large_is_said_to_be_and_ends_nothing(state, monkeypatch):
    async with house(state) as here:
        front = await here.front()
        for id in ("a", "b"):
            await front.start(StartRequest(SPEC, id=id, labels={"x": "y" * 1000}))
        monkeypatch.setattr(frames, "MAX_HEAD", 3000)
        with pytest.raises(Refusal, match="bytes of JSON are more than the 3000") as refusal:
            await front.statuses()
        assert (refusal.value.status, refusal.value.kind) == (500, "too_large")
        assert (await front.status("b")).id == "b"


@in_a_loop
async def test_two_front_ends_see_the_same_sandboxes(state):
    async with house(state) as here:
        one, other = await here.front(), await here.front()
        assert one.label == "fake"
        status = await one.start(StartRequest(SPEC, id="a", labels={"x": "y"}))
        assert (status.state, status.spec, status.labels) == (State.RUNNING, SPEC, {"x": "y"})
        await one.close()
        assert (await other.call("a", "run", command="hello")).output == "hello"
        await other.call("a", "write", files=b"\0\xff")
        snapshot = await other.snapshot("a")
        assert await other.call("a", "snapshot") == b"\0\xff"
        (twin,) = await other.fork("a", 1)
        await other.restore(twin.id, snapshot.id)
        assert {each.id for each in await other.statuses()} == {"a", twin.id}
        assert (await other.nodes())[0].used == 2
        assert "sandbox_started" in [each.kind for each in (await other.events_after(0)).events]
        await other.stop("a")
        with pytest.raises(SandboxGone) as caught:
            await other.call("a", "run", command="x")
        assert caught.value.cause is Cause.STOPPED


@in_a_loop
async def test_a_request_that_comes_again_is_executed_once_through_any_front_end(state):
    async with house(state) as here:
        one, other = await here.front(), await here.front()
        await one.start(StartRequest(SPEC, id="a"))
        (sandbox,) = here.pool._machines._runtime.sandboxes
        ran, run = [], sandbox.run

        async def counted(command):
            ran.append(command)
            return await run(command)

        sandbox.run = counted
        gate = sandbox.hold()
        first = asyncio.ensure_future(one.for_request("ann", "r").call("a", "run", command="x"))
        await until(lambda: ran)
        again = asyncio.ensure_future(other.for_request("ann", "r").call("a", "run", command="x"))
        first.cancel()  # its front end is killed
        await asyncio.sleep(0)
        gate.set()
        assert (await again).output == "x" and ran == ["x"]
        assert (await other.for_request("ann", "r").call("a", "run", command="x")).output == "x"
        assert ran == ["x"]
        await other.for_request("bob", "r").call("a", "run", command="x")
        two = other.for_request("ann", "two")
        await two.call("a", "run", command="x")
        await two.call("a", "run", command="x")  # the second call of one request is another
        assert len(ran) == 4
        with pytest.raises(Refusal) as caught:
            await one.for_request("ann", "r").call("a", "run", command="y")
        assert caught.value.kind == "request_id_reused"


@in_a_loop
async def test_a_start_that_found_no_slot_may_be_asked_for_again(state):
    async with house(state, slots=1) as here:
        front = await here.front()
        await front.start(StartRequest(SPEC, id="a"))
        with pytest.raises(PoolFull):
            await front.for_request("ann", "s").start(StartRequest(SPEC, id="b"))
        await front.stop("a")
        assert (await front.for_request("ann", "s").start(StartRequest(SPEC, id="b"))).id == "b"


@in_a_loop
async def test_two_front_ends_cannot_together_exceed_the_limits_of_a_token(state):
    async with house(state, slots=9) as here:
        fronts = [await here.front(), await here.front()]
        ann = StartRequest(SPEC, labels={"tenant": "ann"})

        def start(front, **more):
            return front.start(dataclasses.replace(ann, **more), LIMITS)

        starts = [start(fronts[number % 2]) for number in range(6)]
        outcomes = await asyncio.gather(*starts, return_exceptions=True)
        (first, *_), refused = _divided(outcomes)
        assert {type(each) for each in refused} == {QuotaExceeded} and len(refused) == 3
        assert await fronts[1].held("ann") == Room.of(SPEC, 3)
        assert [str(each) for each in refused] == [
            "sandboxes 4 is more than this token may use, 3"
        ] * 3
        assert (await start(fronts[1], id=first.id)).id == first.id  # it lives, so it is not new
        await fronts[0].stop(first.id)
        with pytest.raises(QuotaExceeded):
            await fronts[1].start_many(ann, 1, 1, LIMITS)
        (one,) = await fronts[1].start_many(ann, 1, limits=LIMITS)
        with pytest.raises(QuotaExceeded):
            await fronts[0].fork(one.id, 1, 1 << 20, LIMITS)
        bob = dataclasses.replace(ann, labels={"tenant": "bob"})
        assert (await fronts[0].start(bob, LIMITS)).labels == {"tenant": "bob"}


def _divided(outcomes):
    done = [each for each in outcomes if not isinstance(each, BaseException)]
    return done, [each for each in outcomes if isinstance(each, BaseException)]


@in_a_loop
async def test_a_start_that_comes_again_is_the_same_under_other_limits(state):
    async with house(state) as here:
        front = await here.front()
        request = StartRequest(SPEC, labels={"tenant": "ann"})
        started = await front.for_request("ann", "s").start(request, LIMITS)
        less = OwnerLimits(Room(1, 1, 1.0, 1), shares=False)  # the operator has changed them since
        assert (await front.for_request("ann", "s").start(request, less)).id == started.id
        with pytest.raises(QuotaExceeded):
            await front.for_request("ann", "other").start(request, less)


@in_a_loop
async def test_what_a_token_has_used_and_how_long_it_may_are_told_by_the_owner(state):
    async with house(state) as here:
        front = await here.front()
        request = StartRequest(SPEC, "a", labels={"tenant": "ann"}, deadline_seconds=10.0)
        await front.start(request)
        renewed = await front.for_request("ann", "r").renew("a", 50.0)
        await here.pool.tick(seconds=30.0)
        again = await front.for_request("ann", "r").renew("a", 50.0)  # has no effect
        assert again == renewed and (await front.status("a")).state is State.RUNNING
        assert (await front.usage())["ann"] == Usage(30.0, 0.0)
        await front.call("a", "write", files=b"too long")
        with pytest.raises(SandboxError, match="bytes"):
            await front.snapshot("a", 1)
        await here.pool.tick(seconds=30.0)
        assert (await front.status("a")).cause is Cause.DEADLINE


@in_a_loop
async def test_a_start_without_an_id_that_nobody_waits_for_leaves_nothing(state):
    async with house(state) as here:
        here.pool._machines._runtime.plan.append("wait")
        front = await here.front()
        start = asyncio.ensure_future(front.start(StartRequest(SPEC)))
        await until(lambda: here.pool.used == 1)
        start.cancel()
        (pooled,) = here.pool._lifecycle.sandboxes.values()
        await until(lambda: pooled.life.cause is Cause.STOPPED)
        here.pool._machines._runtime.go.set()
        await until(lambda: here.pool.used == 0)


@in_a_loop
async def test_a_cancelled_request_ends_whatever_front_end_it_came_through(state):
    async with house(state) as here:
        one, other = await here.front(), await here.front()
        await one.start(StartRequest(SPEC, id="a"))
        (sandbox,) = here.pool._machines._runtime.sandboxes
        sandbox.hold()
        run = asyncio.ensure_future(one.for_request("ann", "r").call("a", "run", command="x"))
        await until(lambda: here.pool._lifecycle.sandboxes["a"].busy == 1)
        await other.cancel_request("bob", "r")
        assert here.pool._lifecycle.sandboxes["a"].busy == 1
        await other.cancel_request("ann", "r")
        assert here.pool._lifecycle.sandboxes["a"].busy == 0
        with pytest.raises(Refusal, match="cancelled"):
            await run
        with pytest.raises(Refusal, match="cancelled"):
            await other.for_request("ann", "r").call("a", "run", command="x")


@in_a_loop
async def test_what_a_cancelled_request_has_started_ends_unless_it_has_an_id_of_the_callers(state):
    async with house(state) as here:
        front = await here.front()
        made = await front.for_request("ann", "r").start(StartRequest(SPEC))
        named = await front.for_request("ann", "s").start(StartRequest(SPEC, id="a"))
        await front.cancel_request("ann", "r")
        await front.cancel_request("ann", "s")
        assert (await front.status(made.id)).cause is Cause.STOPPED
        assert (await front.status(named.id)).cause is None


@in_a_loop
async def test_whoever_lacks_the_token_is_not_served(state):
    async with house(state) as here:
        with pytest.raises(Refusal, match="gone"):
            await here.front("wrong")
        reader, writer = await asyncio.open_unix_connection(state.path / "node.sock")
        writer.write(
            frames.pack({"do": "end", "arguments": [], "named": {}, "key": None, "terms": {}})
        )
        assert await reader.read() == b""  # the connection is closed without a word
        writer.close()
        await (await here.front()).nodes()


@pytest.mark.parametrize(
    "request_",
    [
        {"do": "_close", "arguments": [], "named": {}, "key": None, "terms": {}},
        {"do": "close", "arguments": [], "named": {}, "key": None, "terms": {}},
        {"do": "call", "arguments": ["a", "__init__"], "named": {}, "key": None, "terms": {}},
        {
            "do": "start",
            "arguments": [{"spec": {"memory_md": 1}}],
            "named": {},
            "key": None,
            "terms": {},
        },
        {"do": "start", "arguments": [{"spec": {}, "x": 1}], "named": {}, "key": None, "terms": {}},
        {"do": "stop", "arguments": [], "named": {}, "key": None, "terms": {}},
        {"do": "stop", "arguments": ["a"], "named": {}, "key": None, "terms": {"limits": None}},
        {"do": "start", "arguments": [{"spec": {}}], "named": {}, "key": None, "terms": NO_LIMITS},
    ],
    ids=lambda each: f"{each['do']}-{each['arguments']}",
)
@in_a_loop
async def test_what_a_front_end_may_not_ask_for_is_an_error(state, request_):
    async with house(state) as here:
        front = await here.front()
        connection = await front._connect()
        await connection.send(request_)
        assert "error" in await connection.answer()
        connection.close()
        assert (await front.nodes())[0].alive


@in_a_loop
async def test_when_the_process_is_gone_a_front_end_says_so(state):
    async with house(state) as here:
        front = await here.front()
    with pytest.raises(Refusal, match="gone") as caught:
        await front.nodes()
    assert caught.value.status == 503


def test_a_state_directory_is_private(tmp_path):
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(ValueError, match="chmod 700"):
        StateDirectory(str(tmp_path / "open"))
    with pytest.raises(ValueError, match="too long"):
        StateDirectory(str(tmp_path / ("x" * 100)))


@in_a_loop
async def test_socket_and_token_are_private(state):
    async with house(state):
        modes = {path.name: path.stat().st_mode & 0o777 for path in state.path.iterdir()}
        assert modes == {"node.sock": 0o600, "node.json": 0o600}
        assert state.path.stat().st_mode & 0o777 == 0o700

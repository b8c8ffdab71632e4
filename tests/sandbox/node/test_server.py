"""Front ends before a pool that is not theirs: each request once, whoever asks, whoever leaves."""

import asyncio
import contextlib

import pytest

from ale_jax.sandbox.node import frames
from ale_jax.sandbox.node.client import NodeClient
from ale_jax.sandbox.node.process import StateDirectory
from ale_jax.sandbox.node.server import NodeServer
from ale_jax.sandbox.pool.api import Cause, PoolFull, SandboxGone, StartRequest, State
from ale_jax.sandbox.service.records import Refusal
from tests.sandbox.pool.fakes import SPEC, FakeRuntime, HandPool, in_a_loop, until

TOKEN = "t" * 32


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
async def test_whoever_lacks_the_token_is_not_served(state):
    async with house(state) as here:
        with pytest.raises(Refusal, match="gone"):
            await here.front("wrong")
        reader, writer = await asyncio.open_unix_connection(state.path / "node.sock")
        writer.write(frames.pack({"do": "end", "arguments": [], "named": {}, "key": None}))
        assert await reader.read() == b""  # the connection is closed without a word
        writer.close()
        await (await here.front()).nodes()


@pytest.mark.parametrize(
    "request_",
    [
        {"do": "_close", "arguments": [], "named": {}, "key": None},
        {"do": "close", "arguments": [], "named": {}, "key": None},
        {"do": "call", "arguments": ["a", "__init__"], "named": {}, "key": None},
        {"do": "start", "arguments": [{"spec": {"memory_md": 1}}], "named": {}, "key": None},
        {"do": "start", "arguments": [{"spec": {}, "x": 1}], "named": {}, "key": None},
        {"do": "stop", "arguments": [], "named": {}, "key": None},
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

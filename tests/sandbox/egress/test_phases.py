"""A change of policy, the end of the sandbox, and sides that read slowly or send anything."""

import asyncio
import contextlib
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ale_jax.sandbox.egress.policy import EgressPolicy
from ale_jax.sandbox.egress.proxy import EgressConnection, EgressProxy
from ale_jax.sandbox.egress.streams import CHUNK, EgressLimits
from tests.sandbox.egress.test_request import Pieces
from tests.sandbox.egress.world import (
    EchoSite,
    Names,
    SilentSite,
    Site,
    Told,
    connect,
    get,
    in_loop,
    line,
    proxy_to,
    status,
)


@in_loop
async def test_a_new_policy_cuts_what_it_does_not_permit_and_nothing_else():
    async with EchoSite().open() as a, EchoSite().open() as b, proxy_to(a, b) as proxy:
        (lost, _), (kept, writer) = [
            await proxy.tunnel(f"{name}.test:{site.port}", b"before")
            for name, site in (("a", a), ("b", b))
        ]
        assert await lost.readexactly(6) == await kept.readexactly(6) == b"before"
        proxy.proxy.set_policy(EgressPolicy("allowlist", (f"b.test:{b.port}",)))
        assert await lost.read() == b""
        await a.over.acquire()
        writer.write(b"after")
        assert await kept.readexactly(5) == b"after"
        assert "allowlist" in line(await proxy.ask(connect(f"a.test:{a.port}")))
        await proxy.tunnel(f"b.test:{b.port}")
        assert proxy.told.rules == ["policy_changed", "allowlist"]


class Fed:
    """A sandbox that sends what it is fed."""

    def __init__(self):
        self.food = asyncio.Queue()

    async def read(self, n):
        return await self.food.get()


@in_loop
async def test_not_a_byte_leaves_after_the_change():
    async with EchoSite().open() as site, proxy_to(site) as proxy:
        fed, sink = Fed(), Sink()
        fed.food.put_nowait(connect(f"a.test:{site.port}") + b"before")
        serving = asyncio.create_task(proxy.proxy.serve(fed, sink))
        while not sink.content.endswith(b"before"):
            await asyncio.sleep(0)
        fed.food.put_nowait(b"too late")  # read in the same turn in which the end becomes known
        proxy.proxy.set_policy(EgressPolicy())
        await serving
        await site.over.acquire()
        assert site.heard == [b"before"]


@in_loop
async def test_a_request_that_is_cut_before_its_answer_is_told_why():
    async with SilentSite().open() as site, proxy_to(site) as proxy:
        reader, _ = await proxy.client(get(f"a.test:{site.port}"))
        while not site.heard:
            await asyncio.sleep(0)
        proxy.proxy.set_policy(EgressPolicy())
        answer = await reader.read()
        assert status(answer) == 403 and "no longer permitted" in line(answer)
        await site.over.acquire()


@in_loop
async def test_a_lookup_under_the_old_policy_leads_nowhere_under_the_new():
    asked, answered = threading.Event(), threading.Event()

    def look_up(host):
        asked.set()
        answered.wait(20)
        return Names(a=["127.0.0.1"])(host)

    async with Site().open() as site, proxy_to(site, names=look_up) as proxy:
        reader, _ = await proxy.client(connect(f"a.test:{site.port}"))
        await asyncio.to_thread(asked.wait, 20)
        proxy.proxy.set_policy(EgressPolicy())
        answer = await reader.read()
        answered.set()
        assert status(answer) == 403 and not site.heard
        assert proxy.told.rules == ["policy_changed"]


@in_loop
async def test_who_has_not_yet_asked_is_judged_by_the_new_policy():
    async with EchoSite().open() as site, proxy_to(site) as proxy:
        request = connect(f"a.test:{site.port}")
        reader, writer = await proxy.client(request[:9])
        await proxy.carries(1)
        policy = proxy.proxy._policy
        proxy.proxy.set_policy(EgressPolicy())
        proxy.proxy.set_policy(policy)
        writer.write(request[9:])
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")


@in_loop
async def test_closing_cuts_everything_and_permits_nothing():
    async with EchoSite().open() as site, proxy_to(site) as proxy:
        where = f"a.test:{site.port}"
        tunnel, _ = await proxy.tunnel(where)
        silent, _ = await proxy.client(b"G")
        await proxy.carries(2)
        proxy.proxy.close()
        assert await tunnel.read() == await silent.read() == b"" and not proxy.told
        assert status(await proxy.ask(connect(where))) == 403
        await site.over.acquire()
        proxy.proxy.close()  # again, to no effect
        lookups = [t for t in threading.enumerate() if t.name.startswith("egress-lookup")]
        for thread in lookups:
            await asyncio.to_thread(thread.join, 10)
        assert not any(thread.is_alive() for thread in lookups)


@in_loop
async def test_a_call_that_is_cancelled_closes_both_sides():
    async with EchoSite().open() as site, proxy_to(site) as proxy:
        ours, theirs = Pieces(connect(f"a.test:{site.port}") + b"x"), Sink()
        ours = Open(ours)
        serving = asyncio.create_task(proxy.proxy.serve(ours, theirs))
        while b"x" not in theirs.content:
            await asyncio.sleep(0)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        await site.over.acquire()
        assert theirs.closed and not proxy.proxy._connections


class Open:
    """A reader that says no more, and does not end."""

    def __init__(self, reader):
        self.reader = reader

    async def read(self, n):
        return await self.reader.read(n) or await asyncio.Event().wait()


class Sink:
    """A writer with a gate that can be shut: `drain` then waits."""

    def __init__(self):
        self.content = bytearray()
        self.gate, self.waiting = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.closed = False

    def write(self, data):
        assert not self.closed
        self.content += data

    async def drain(self):
        self.waiting.set()
        await self.gate.wait()

    def close(self):
        self.closed = True


class Endless(Site):
    async def serve(self, reader, writer):
        while True:
            writer.write(bytes(1000))
            await writer.drain()


@pytest.mark.parametrize("ask", [connect, get], ids=["connect", "get"])
@in_loop
async def test_an_endless_answer_to_one_who_may_be_gone_is_ended(ask):
    soon = EgressLimits(linger_seconds=0.05)
    async with Endless().open() as site, proxy_to(site, limits=soon) as proxy:
        reader, writer = await proxy.client(ask(f"a.test:{site.port}"))
        await reader.readexactly(10_000)
        writer.write_eof()
        await reader.read()
        assert not proxy.told


@in_loop
async def test_who_does_not_read_what_is_left_is_cut_all_the_same():
    for patient in (EgressLimits(linger_seconds=1000.0), EgressLimits(head_seconds=1000.0)):
        async with Site(bytes(MUCH)).open() as site, proxy_to(site, limits=patient) as proxy:
            sink, request = Sink(), Pieces(get(f"a.test:{site.port}"))
            sink.gate.clear()
            request = request if patient.linger_seconds > 100 else Open(request)
            serving = asyncio.create_task(proxy.proxy.serve(request, sink))
            await sink.waiting.wait()
            proxy.proxy.set_policy(EgressPolicy())
            await serving
            assert sink.closed and proxy.told.rules == ["policy_changed"]


@pytest.mark.parametrize("what", ["reads", "ends"])
@in_loop
async def test_a_cut_is_not_undone_by_what_the_sandbox_does_in_its_turn(what):
    patient = EgressLimits(idle_seconds=1000.0, linger_seconds=1000.0)
    async with Site(bytes(MUCH)).open() as site, proxy_to(site, limits=patient) as proxy:
        fed, sink = Fed(), Sink()
        sink.gate.clear()
        fed.food.put_nowait(get(f"a.test:{site.port}"))
        serving = asyncio.create_task(proxy.proxy.serve(fed, sink))
        await sink.waiting.wait()
        if what == "reads":
            sink.gate.set()
        else:
            fed.food.put_nowait(b"")
        proxy.proxy.set_policy(EgressPolicy())
        sink.gate.clear()
        await serving
        assert sink.closed


@in_loop
async def test_what_has_run_out_is_not_prolonged():
    connection = EgressConnection(Pieces(b""), Sink(), EgressLimits())
    with pytest.raises(TimeoutError):
        async with connection.deadline:
            connection.deadline.reschedule(0.0)
            try:
                await asyncio.Event().wait()
            finally:
                connection.touch()  # as the other direction may, before it is told


class Broken(Sink):
    """A sandbox that is gone when one writes to it, or reads from it."""

    async def drain(self):
        raise ConnectionResetError("gone")

    async def read(self, n):
        raise ConnectionResetError("gone")


@in_loop
async def test_a_sandbox_that_is_gone_is_nobodys_error():
    async with Site().open() as site, proxy_to(site) as proxy:
        where = f"a.test:{site.port}"
        for request in (get("b.test"), get(where), connect(where)):
            sink = Broken()
            await proxy.proxy.serve(Open(Pieces(request)), sink)
            assert sink.closed
        broken = Broken()
        await proxy.proxy.serve(broken, broken)
        assert broken.closed and proxy.told.rules == ["allowlist"]


MUCH = 64 << 20  # more than any socket keeps


@in_loop
async def test_a_sandbox_that_does_not_read_is_not_sent_more():
    async with Site(bytes(MUCH // 8)).open() as site, proxy_to(site) as proxy:
        sink = Sink()
        sink.gate.clear()
        request = Open(Pieces(get(f"a.test:{site.port}")))
        serving = asyncio.create_task(proxy.proxy.serve(request, sink))
        await sink.waiting.wait()
        for _ in range(1000):
            await asyncio.sleep(0)
        assert 0 < len(sink.content) <= CHUNK
        sink.gate.set()
        await serving
        assert len(sink.content) == MUCH // 8


@in_loop
async def test_a_site_that_does_not_read_is_not_sent_more():
    class Slow(Site):
        awake = asyncio.Event()

        async def serve(self, reader, writer):
            await self.awake.wait()
            while await reader.read(CHUNK):
                pass

    class Source:
        def __init__(self, head):
            self.head, self.sent = head, 0

        async def read(self, n):
            await asyncio.sleep(0)
            if self.head:
                head, self.head = self.head, b""
                return head
            part = min(n, MUCH - self.sent)
            self.sent += part
            return bytes(part) if part else await asyncio.Event().wait()

    async with Slow().open() as site, proxy_to(site) as proxy:
        source = Source(get(f"a.test:{site.port}", "/", f"Content-Length: {MUCH}"))
        serving = asyncio.create_task(proxy.proxy.serve(source, Sink()))
        await stalled(source)
        assert 0 < source.sent < MUCH
        site.awake.set()
        while source.sent < MUCH:
            await asyncio.sleep(0)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


async def stalled(source):
    """Returns when nothing was taken from it for many turns of the loop."""
    before = -1
    while source.sent != before:
        before = source.sent
        for _ in range(2000):
            await asyncio.sleep(0)


@given(st.binary(max_size=200), st.integers(1, 40), st.sampled_from([b"", b"CONNECT ", b"GET "]))
def test_whatever_a_sandbox_sends_is_served_to_its_end(data, size, start):
    async def serve():
        sink, told = Sink(), Told()
        with EgressProxy(EgressPolicy(), told, look_up=lambda host: 1 // 0) as proxy:
            await proxy.serve(Pieces(start + data, size), sink)
        return bytes(sink.content), told, sink.closed

    answer, told, closed = asyncio.run(serve())
    assert closed and len(told) == (1 if start or data else 0)
    if told:
        assert status(answer) in (400, 403, 431) and line(answer).isprintable()
    else:
        assert answer == b""

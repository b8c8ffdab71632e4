"""How long a connection may take, how many there may be, and how much is written down."""

import contextlib
import socket
import threading

import pytest

from ale_jax.sandbox.egress.policy import EgressPolicy
from ale_jax.sandbox.egress.streams import EgressLimits
from tests.sandbox.egress.world import (
    HERE,
    EchoSite,
    Names,
    SilentSite,
    Site,
    connect,
    get,
    in_loop,
    line,
    proxy_to,
    status,
)


@in_loop
async def test_who_takes_too_long_is_a_timeout():
    async with SilentSite().open() as site:
        where = f"a.test:{site.port}"
        async with proxy_to(site, limits=EgressLimits(head_seconds=0.05)) as proxy:
            assert status(await proxy.ask(get(where)[:-1])) == 408
            assert len(proxy.told) == 1
        # Nothing but the idle time is short: a busy machine needs some time to connect.
        async with proxy_to(site, limits=EgressLimits(idle_seconds=0.05)) as proxy:
            assert status(await proxy.ask(get(where))) == 504
            reader, _ = await proxy.tunnel(where)
            assert await reader.read() == b""  # an idle tunnel simply ends
            assert len(proxy.told) == 1
    patient = EgressLimits(linger_seconds=0.05)
    async with SilentSite().open() as site, proxy_to(site, limits=patient) as proxy:
        reader, writer = await proxy.client(get(f"a.test:{site.port}"))
        writer.write_eof()
        assert status(await reader.read()) == 504


@in_loop
async def test_a_lookup_that_hangs_is_a_timeout():
    answered = threading.Event()

    def hang(host):
        answered.wait(20)
        return ()

    limits = EgressLimits(connect_seconds=0.05)
    async with proxy_to(policy=EgressPolicy("open"), names=hang, limits=limits) as proxy:
        answer = await proxy.ask(connect("a.test:443"))
        assert status(answer) == 504 and line(answer) == "a.test could not be resolved in time"
        answered.set()


@in_loop
async def test_an_address_that_does_not_answer_costs_its_share_of_the_time():
    with dead_port() as port:
        names, allowed = Names(a=["127.0.0.1", "127.0.0.2"]), EgressPolicy("open")
        soon = EgressLimits(connect_seconds=1.0)  # of which a busy machine needs some
        async with proxy_to(policy=allowed, names=names, limits=soon) as proxy:
            async with Site(b"alive").open("127.0.0.2", port):
                assert await proxy.ask(get(f"a.test:{port}")) == b"alive"
            names["a.test"] = ["127.0.0.1"]
            answer = await proxy.ask(get(f"a.test:{port}"))
            assert status(answer) == 504 and "connected to in time" in line(answer)


@contextlib.contextmanager
def dead_port():
    """A port of 127.0.0.1 that takes no connection and refuses none: its queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((HERE, 0), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@in_loop
async def test_one_sandbox_has_so_many_connections_and_no_more():
    async with (
        EchoSite().open() as site,
        proxy_to(site, limits=EgressLimits(connections=2)) as proxy,
    ):
        where = f"a.test:{site.port}"
        _, writer = await proxy.tunnel(where)
        await proxy.client(b"G")
        await proxy.carries(2)
        answer = await proxy.ask(b"")
        assert status(answer) == 503 and "2 connections" in line(answer)
        writer.close()
        await proxy.carries(1)
        await proxy.tunnel(where)
        assert proxy.told.rules == ["connections"]


@in_loop
async def test_a_sandbox_does_not_fill_the_events():
    async with proxy_to(policy=EgressPolicy(), limits=EgressLimits(recorded=3)) as proxy:
        for _ in range(5):
            assert status(await proxy.ask(get("a.test"))) == 403
        assert [kind for kind, _, _ in proxy.told] == ["egress_refused"] * 3 + ["egress_muted"]


def test_limits_are_positive():
    with pytest.raises(ValueError, match=r"connections is 0.*positive"):
        EgressLimits(connections=0)

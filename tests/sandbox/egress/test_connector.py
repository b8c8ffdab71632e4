"""What goes through the operator's proxy, what it is told, and what nobody else is."""

import asyncio
import errno
import threading

import pytest

from ale_jax.sandbox.egress.policy import Authority, EgressPolicy
from ale_jax.sandbox.egress.streams import EgressLimits, EgressRefusal
from ale_jax.sandbox.egress.uplink import DIRECT
from ale_jax.sandbox.egress.upstream import UpstreamProxy
from tests.sandbox.egress.test_proxy import LiteralsToo
from tests.sandbox.egress.world import (
    FUSE_S,
    HERE,
    HTTP,
    SilentSite,
    Site,
    connect,
    get,
    in_loop,
    line,
    proxy_to,
    status,
)

LOGIN = "Basic c2VjcmV0"


class Company(Site):
    """A proxy that answers requests itself, and leads tunnels to an echo."""

    granted = b"HTTP/1.1 200 Yes\r\nVia: 1.1 inner.example\r\n\r\nfirst"

    async def serve(self, reader, writer):
        heard = bytearray(await reader.readuntil(b"\r\n\r\n"))
        self.heard.append(heard)
        if not heard.startswith(b"CONNECT"):
            writer.write(self.answer)
            return
        writer.write(self.granted)
        while data := await reader.read(1 << 16):
            heard += data
            writer.write(data)


class Behind:
    """The uplink of an operator who names a proxy and, if `named`, the network of this loopback."""

    def __init__(self, company, login=LOGIN, named=False):
        self.networks = ("loopback",) if named else ()
        self._proxy = UpstreamProxy(Authority(HERE, company.port), login)

    def names(self, address, port):
        return bool(self.networks) and str(address) == HERE

    def refusal(self, address, port):
        return None if self.names(address, port) else DIRECT.refusal(address, port)

    def upstream(self):
        return self._proxy


def behind(company, login=LOGIN, named=False, names=None, **options):
    """The proxy of a sandbox that may go anywhere, behind the company's. names: that this host can
    look up."""
    names, uplink = LiteralsToo(**names or {}), Behind(company, login, named)
    return proxy_to(policy=EgressPolicy("open"), names=names, uplink=uplink, **options)


@in_loop
async def test_a_request_reaches_the_proxy_in_full_with_the_login():
    async with Company().open() as company, behind(company) as proxy:
        own = "Proxy-Authorization: Basic bWluZQ=="
        answer = await proxy.ask(get("pypi.org", "/simple?a=b", "X: y", own))
        assert answer == company.answer
        await company.over.acquire()
        assert company.heard == [
            f"GET {HTTP}pypi.org:80/simple?a=b HTTP/1.1\r\n"
            f"Proxy-Authorization: {LOGIN}\r\n"
            "Host: pypi.org\r\nX: y\r\nConnection: close\r\n\r\n".encode()
        ]


@in_loop
async def test_a_tunnel_leads_through_the_proxy_which_alone_has_the_login():
    async with Company().open() as company, behind(company) as proxy:
        reader, writer = await proxy.tunnel("pypi.org:443", b"early")
        assert await reader.readexactly(10) == b"firstearly"
        writer.write_eof()
        assert await reader.read() == b""
        await company.over.acquire()
        assert company.heard == [
            "CONNECT pypi.org:443 HTTP/1.1\r\nHost: pypi.org:443\r\n"
            f"Proxy-Authorization: {LOGIN}\r\n\r\nearly".encode()
        ]


@in_loop
async def test_without_a_login_none_is_sent():
    async with Company().open() as company, behind(company, login="") as proxy:
        await proxy.ask(get("pypi.org"))
        await proxy.tunnel("[2606:4700::1111]:443")
        assert not any(b"Authorization" in heard for heard in company.heard)
        assert company.heard[1].startswith(b"CONNECT [2606:4700::1111]:443 HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"HTTP/1.1 407 s3cret\r\nProxy-Authenticate: s3cret\r\n\r\ns3cret", "status 407 for"),
        (b"HTTP/1.0 403 No\r\n\r\n", "status 403 for"),
        (b"HTTP/1.1 2000 Yes\r\n\r\n", "no HTTP for"),
        (b"SSH-2.0 s3cret\r\n\r\n", "no HTTP for"),
        (b"HTTP/1.1 200 Yes\r\n", "no HTTP for"),
        (b"HTTP/1.1 200 Yes\r\nX: " + b"x" * (1 << 18), "no HTTP for"),
        (b"", "no HTTP for"),
    ],
)
@in_loop
async def test_a_proxy_that_refuses_is_told_by_its_status_alone(said, words):
    class Refusing(Company):
        async def serve(self, reader, writer):
            self.heard.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(said)
            await writer.drain()

    async with Refusing().open() as company, behind(company) as proxy:
        answer = await proxy.ask(connect("pypi.org:443"))
        assert status(answer) == 502 and line(answer).endswith(f"{words} pypi.org:443")
        ((kind, detail, fields),) = proxy.told
        assert (kind, fields["rule"]) == ("egress_failed", "upstream")
        assert "s3cret" not in detail and LOGIN not in detail and b"s3cret" not in answer


@in_loop
async def test_a_proxy_that_is_not_there_or_silent_is_told_to_the_operator():
    async with Site().open() as gone:
        pass
    async with behind(gone) as proxy:
        for ask in (connect, get):
            answer = await proxy.ask(ask("pypi.org:443"))
            assert status(answer) == 502 and "could not be connected to" in line(answer)
            assert str(gone.port) not in line(answer) and f"{HERE}:{gone.port}" in proxy.told[-1][1]
    soon = EgressLimits(connect_seconds=0.05)
    async with SilentSite().open() as silent, behind(silent, limits=soon) as proxy:
        answer = await proxy.ask(connect("pypi.org:443"))
        assert status(answer) == 504 and "in time" in line(answer)


@pytest.mark.parametrize("ask", [connect, get])
@pytest.mark.parametrize(
    "host",
    [
        *("10.0.5.7", "127.0.0.1", "169.254.169.254", "[::1]", "[::ffff:10.0.5.7]"),
        *("localhost", "a.localhost", "LOCALHOST.", "metadata", "metadata.google.internal"),
        *("inner.test", "own.test", "both.test", "empty.test"),
    ],
)
@in_loop
async def test_the_proxy_is_asked_for_nothing_that_is_known_to_be_private(host, ask):
    names = {"inner": ["10.0.5.7"], "own": [HERE], "both": ["8.8.8.8", "10.0.5.7"], "empty": []}
    async with Company().open() as company, behind(company, names=names) as proxy:
        answer = await proxy.ask(ask(f"{host}:80"))
        assert status(answer) == 403 and "no public address" in line(answer)
        assert proxy.told.rules == ["address"] and not company.heard


@in_loop
async def test_the_proxy_is_not_asked_for_what_takes_too_long_to_look_up():
    over = threading.Event()
    soon = EgressLimits(connect_seconds=0.05)
    async with Company().open() as company:
        uplink = Behind(company)
        async with proxy_to(
            policy=EgressPolicy("open"),
            names=lambda host: over.wait(FUSE_S),
            uplink=uplink,
            limits=soon,
        ) as proxy:
            answer = await proxy.ask(get("inner.test"))
            over.set()
        assert status(answer) == 504 and not company.heard


@in_loop
async def test_the_proxy_is_not_asked_for_what_cannot_be_judged():
    names = LiteralsToo(inner=["10.0.5.7"])
    async with Company().open() as company:
        uplink = Behind(company)
        uplink.refusal = out_of_sockets
        async with proxy_to(policy=EgressPolicy("open"), names=names, uplink=uplink) as proxy:
            assert status(await proxy.ask(get("inner.test"))) == 502
            assert "Too many open files" in proxy.told[0][1]
        assert not company.heard


def out_of_sockets(address, port):
    raise OSError(errno.EMFILE, "Too many open files")


@in_loop
async def test_hosts_in_a_named_network_are_reached_without_the_proxy():
    names = {"mirror": [HERE], "inner": ["10.0.6.7"], "outer": ["8.8.8.8"]}
    async with Company().open() as company, Site(b"mirror").open() as mirror:
        async with behind(company, named=True, names=names) as proxy:
            for host in ("mirror.test", HERE):
                assert await proxy.ask(get(f"{host}:{mirror.port}")) == b"mirror"
            answer = await proxy.ask(get("inner.test"))
            assert status(answer) == 403 and not company.heard
            for host in ("outer.test", "unknown.test", "8.8.4.4"):
                assert await proxy.ask(get(host)) == company.answer
            assert len(company.heard) == 3


@in_loop
async def test_no_proxy_is_made_to_show_what_it_is_sent():
    async with Company().open() as company, behind(company) as proxy:
        for method in (b"TRACE", b"trace"):
            answer = await proxy.ask(
                get("pypi.org", "/", "Max-Forwards: 0").replace(b"GET", method)
            )
            assert status(answer) == 400 and "TRACE" in line(answer)
        assert not company.heard


@in_loop
async def test_a_tunnel_that_is_cut_while_the_proxy_thinks_is_hung_up():
    async with SilentSite().open() as company, behind(company) as proxy:
        asking = asyncio.create_task(proxy.ask(connect("pypi.org:443")))
        while not company.heard:
            await asyncio.sleep(0)
        proxy.proxy.set_policy(EgressPolicy())
        assert status(await asking) == 403
        await company.over.acquire()


@in_loop
async def test_a_proxy_that_refused_is_hung_up_while_the_refusal_is_still_held():
    async with Site(b"HTTP/1.1 403 No\r\n\r\n").open() as company:
        upstream = UpstreamProxy(Authority(HERE, company.port))
        with pytest.raises(EgressRefusal, match="status 403") as held:
            await upstream.tunnel(Authority("pypi.org", 443))
        await company.over.acquire()
        assert held.value.status == 502

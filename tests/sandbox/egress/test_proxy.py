"""What the proxy lets through, and what it answers when it does not."""

import asyncio
import contextlib
import http.client
import ipaddress
import urllib.request

import pytest

from ale_jax.sandbox.egress.policy import EgressPolicy, literal_address
from ale_jax.sandbox.egress.request import UNRECOGNIZED_NAME
from ale_jax.sandbox.egress.uplink import DIRECT
from tests.sandbox.egress.test_hello import openssl_hello
from tests.sandbox.egress.world import (
    HERE,
    HTTP,
    Anywhere,
    EchoSite,
    Names,
    SilentSite,
    Site,
    connect,
    get,
    in_loop,
    line,
    proxy_to,
    reset,
    status,
)


@in_loop
async def test_a_request_is_sent_on_and_its_answer_comes_back_as_it_is():
    odd = b"HTTP/1.1 299 \xff\r\nX:  y \nno header at all\r\n\r\n\0\r\n\r\n"
    async with Site(odd).open() as site, proxy_to(site) as proxy:
        where = f"a.test:{site.port}"
        secret = "Proxy-Authorization: Basic c2VjcmV0"
        assert await proxy.ask(get(where, "/p?q=1", "X: y", secret)) == odd
        await site.over.acquire()
        assert site.heard == [
            f"GET /p?q=1 HTTP/1.1\r\nHost: {where}\r\nX: y\r\nConnection: close\r\n\r\n".encode()
        ]
        assert proxy.names.asked == ["a.test"] and not proxy.told


@in_loop
async def test_nothing_after_the_body_is_sent_on():
    async with Site(answers_to=b"abc").open() as site, proxy_to(site) as proxy:
        where = f"a.test:{site.port}"
        post = get(where, "/", "Content-Length: 3").replace(b"GET", b"POST", 1)
        assert status(await proxy.ask(post + b"abc" + get("b.test", "/smuggled"))) == 200
        await site.over.acquire()
        (heard,) = site.heard
        assert heard.endswith(b"Connection: close\r\n\r\nabc")


@in_loop
async def test_a_body_in_chunks_is_sent_on_chunk_by_chunk():
    async with Site(answers_to=b"0\r\n\r\n").open() as site, proxy_to(site) as proxy:
        chunked = get(f"a.test:{site.port}", "/", "Transfer-Encoding: chunked")
        body = b"003\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n"
        assert status(await proxy.ask(chunked + body + b"GET /smuggled")) == 200
        await site.over.acquire()
        assert site.heard[0].endswith(b"\r\n\r\n3\r\nabc\r\na\r\n0123456789\r\n0\r\n\r\n")


@in_loop
async def test_a_body_that_turns_out_wrong_is_refused_though_its_head_is_sent_on():
    async with SilentSite().open() as site, proxy_to(site) as proxy:
        chunked = get(f"a.test:{site.port}", "/", "Transfer-Encoding: chunked")
        answer = await proxy.ask(chunked + b"3;x\r\nabc\r\n0\r\n\r\n")
        assert status(answer) == 400 and "chunk" in line(answer)
        await site.over.acquire()
        assert b"abc" not in site.heard[0]


@in_loop
async def test_python_speaks_through_it():
    async with Site(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").open() as site:
        async with proxy_to(site) as proxy:
            through = {"http": f"{HTTP}{HERE}:{proxy.port}"}
            opener = urllib.request.build_opener(urllib.request.ProxyHandler(through))

            def fetch():
                with opener.open(f"{HTTP}a.test:{site.port}/x", b"data", timeout=10) as answer:
                    return answer.status, answer.read()

            def fetch_through_tunnel():
                client = http.client.HTTPConnection(HERE, proxy.port, timeout=10)
                client.set_tunnel("a.test", site.port)
                with contextlib.closing(client):
                    client.request("GET", "/y")
                    return client.getresponse().read()

            def fetch_what_is_refused():
                client = http.client.HTTPConnection(HERE, proxy.port, timeout=10)
                client.set_tunnel("b.test", 443)
                with pytest.raises(OSError, match=r"403 b\.test:443 is not on .* allowlist"):
                    client.connect()

            assert await asyncio.to_thread(fetch) == (200, b"hello")
            assert await asyncio.to_thread(fetch_through_tunnel) == b"hello"
            await asyncio.to_thread(fetch_what_is_refused)


@in_loop
async def test_a_tunnel_carries_bytes_both_ways_and_each_side_may_end_it():
    async with EchoSite().open() as site, proxy_to(site) as proxy:
        reader, writer = await proxy.tunnel(f"a.test:{site.port}", b"early ")
        everything = bytes(range(256)) * 4096
        sending = asyncio.create_task(drained(writer, everything))
        assert await reader.readexactly(6 + len(everything)) == b"early " + everything
        await sending
        writer.write_eof()  # the echo ends when it has heard the end
        assert await reader.read() == b""
        await site.over.acquire()
        assert site.heard == [b"early " + everything] and not proxy.told


async def drained(writer, data):
    writer.write(data)
    await writer.drain()


@in_loop
async def test_who_has_sent_all_may_still_be_answered():
    async with Site(answers_to=b"question").open() as site, proxy_to(site) as proxy:
        for request in (
            connect(f"a.test:{site.port}") + b"question",
            get(f"a.test:{site.port}", "/question"),
        ):
            reader, writer = await proxy.client(request)
            writer.write_eof()
            assert (await reader.read()).endswith(b"hello")


REFUSED = [
    (EgressPolicy(), "a.test", 80, 403, "mode", "no network"),
    (EgressPolicy("allowlist", ("b.test",)), "a.test", 80, 403, "allowlist", "a.test:80 is not on"),
    (EgressPolicy("allowlist", ("a.test",)), "a.test", 22, 403, "allowlist", "a.test:22 is not on"),
    (EgressPolicy("allowlist", ("*.a.test",)), "a.test", 80, 403, "allowlist", "is not on"),
    (EgressPolicy("open"), "private.test", 80, 403, "address", "private.test has no public"),
    (EgressPolicy("allowlist", ("private.test",)), "private.test", 80, 403, "address", "public"),
    (EgressPolicy("open"), "169.254.169.254", 80, 403, "address", "no public address"),
    (EgressPolicy("open"), "127.0.0.1", 80, 403, "address", "no public address"),
    (EgressPolicy("open"), "[::1]", 80, 403, "address", "no public address"),
    (EgressPolicy("open"), "[::ffff:10.0.0.1]", 80, 403, "address", "no public address"),
    (EgressPolicy("open"), "[64:ff9b::7f00:1]", 80, 403, "address", "no public address"),
    (EgressPolicy("open"), "127.1", 80, 400, "request", "not a host"),
    (EgressPolicy("open"), "0x7f000001", 80, 400, "request", "not a host"),
    (EgressPolicy("open"), "2130706433", 80, 400, "request", "not a host"),
    (EgressPolicy("open"), "[fe80::1%25eth0]", 80, 400, "request", "not a host"),
    (EgressPolicy("open"), "unknown.test", 80, 502, "unreachable", "could not be resolved"),
    (EgressPolicy("open"), "empty.test", 80, 403, "address", "no public address"),
]


@pytest.mark.parametrize("ask", [connect, get], ids=["connect", "get"])
@pytest.mark.parametrize(("policy", "host", "port", "code", "rule", "words"), REFUSED)
@in_loop
async def test_a_refusal_says_which_rule_and_is_recorded(
    policy, host, port, code, rule, words, ask
):
    names = LiteralsToo(a=["8.8.8.8"], private=["10.0.0.1", "fd00::1"], empty=[])
    async with proxy_to(policy=policy, names=names, uplink=DIRECT) as proxy:
        answer = await proxy.ask(ask(f"{host}:{port}"))
        assert status(answer) == code and words in line(answer)
        ((kind, detail, fields),) = proxy.told
        assert kind == ("egress_failed" if code == 502 else "egress_refused")
        assert detail.startswith(line(answer))
        assert (fields["status"], fields["rule"]) == (code, rule)
        if code != 400:
            assert (fields["host"], fields["port"]) == (addressed(host), port)
        # A name that is not permitted is not even asked for: a lookup tells the world something.
        assert bool(names.asked) == (rule in ("address", "unreachable"))


class LiteralsToo(Names):
    """Knows literal addresses, as the true resolver does."""

    def __call__(self, host):
        if (literal := literal_address(host)) is not None:
            self.asked.append(host)
            return (literal,)
        return super().__call__(host)


def addressed(host):
    """As hosts are written in events."""
    return str(ipaddress.ip_address(host[1:-1])) if host.startswith("[") else host


@in_loop
async def test_only_the_operator_is_told_the_address():
    async with proxy_to(
        policy=EgressPolicy("open"), names=Names(a=["10.9.8.7"]), uplink=DIRECT
    ) as proxy:
        answer = await proxy.ask(connect("a.test:443"))
        assert b"10.9.8.7" not in answer and "10.9.8.7" in proxy.told[0][1]


@in_loop
async def test_the_address_that_was_judged_is_the_one_that_is_connected_to():
    class Rebinding(Names):
        """Another address each time."""

        def __call__(self, host):
            super().__call__(host)
            return (ipaddress.ip_address(f"127.0.0.{1 + len(self.asked)}"),)

    names, judged = Rebinding(a=[]), []
    async with Site(b"judged").open("127.0.0.2") as site, Site(b"other").open(HERE, site.port):
        async with proxy_to(
            site, names=names, uplink=Anywhere(lambda address: judged.append(str(address)))
        ) as proxy:
            assert await proxy.ask(get(f"a.test:{site.port}")) == b"judged"
    assert names.asked == ["a.test"] and judged == ["127.0.0.2"]


@in_loop
async def test_of_several_addresses_a_refused_one_is_left_out_and_a_dead_one_passed_over():
    names = Names(a=["127.0.0.4", "127.0.0.3", "127.0.0.2"])
    async with Site(b"good").open("127.0.0.2") as site, Site(b"bad").open("127.0.0.4", site.port):
        async with proxy_to(
            site,
            names=names,
            uplink=Anywhere(lambda address: "bad" if str(address) == "127.0.0.4" else None),
        ) as proxy:
            assert await proxy.ask(get(f"a.test:{site.port}")) == b"good"


@in_loop
async def test_a_site_that_is_not_there_or_says_nothing_is_a_bad_gateway():
    async with Site().open() as gone:
        pass
    async with proxy_to(gone) as proxy:
        answer = await proxy.ask(connect(f"a.test:{gone.port}"))
        assert status(answer) == 502 and "could not be connected to" in line(answer)
    for end in (lambda writer: writer.close(), reset):
        async with Slammed(end).open() as site, proxy_to(site) as proxy:
            answer = await proxy.ask(get(f"a.test:{site.port}"))
            assert status(answer) == 502 and "without a response" in line(answer)
            assert proxy.told[0][0] == "egress_failed"


class Slammed(Site):
    def __init__(self, end):
        super().__init__()
        self.end = end

    async def serve(self, reader, writer):
        await reader.read(1)
        self.end(writer)


@in_loop
async def test_a_tunnel_leads_to_no_other_site_of_its_address():
    async with EchoSite().open() as site, proxy_to(site) as proxy:
        where = f"a.test:{site.port}"
        mine = openssl_hello("a.test")
        reader, _ = await proxy.tunnel(where, mine)
        assert await reader.readexactly(len(mine)) == mine
        reader, _ = await proxy.tunnel(where, openssl_hello("b.test"))
        assert await reader.read() == UNRECOGNIZED_NAME
        assert proxy.told.rules == ["server_name"]
        await site.over.acquire()
        assert site.heard == [mine, b""]


@in_loop
async def test_a_site_that_speaks_first_is_heard():
    class Banner(Site):
        async def serve(self, reader, writer):
            writer.write(b"220 hello\r\n")
            writer.write(await reader.readline())
            writer.close()

    async with Banner().open() as site, proxy_to(site) as proxy:
        reader, writer = await proxy.tunnel(f"a.test:{site.port}")
        assert await reader.readline() == b"220 hello\r\n"
        writer.write(b"bye\r\n")
        assert await reader.read() == b"bye\r\n"


@in_loop
async def test_neither_an_answer_nor_an_event_repeats_a_secret():
    async with Site().open() as site, proxy_to(site) as proxy:
        secrets = (
            "Authorization: Bearer s3cret",
            "Proxy-Authorization: Basic s3cret",
            "Cookie: s3cret",
        )
        for request in (
            get("u:s3cret@a.test", "/", *secrets),
            get("b.test", "/s3cret?s3cret", *secrets),
            get("a.test", "/s3cret\0", *secrets),
            get(f"a.test:{site.port}", "/s3cret", *secrets, " s3cret"),
            b"s3cret\r\n\r\n",
        ):
            assert b"s3cret" not in await proxy.ask(request)
        assert len(proxy.told) == 5 and "s3cret" not in str(proxy.told) and not site.heard


@in_loop
async def test_who_leaves_without_a_word_or_in_the_middle_is_not_missed():
    async with EchoSite().open() as site, proxy_to(site) as proxy:
        _, writer = await proxy.client()
        writer.close()
        _, writer = await proxy.tunnel(f"a.test:{site.port}")
        reset(writer)
        await site.over.acquire()
        await proxy.carries(0)
        assert not proxy.told

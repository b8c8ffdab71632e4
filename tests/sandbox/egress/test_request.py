"""The head of a request: what is read of it, what is sent on, and what is refused."""

import asyncio
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ale_jax.sandbox.egress.policy import Authority
from ale_jax.sandbox.egress.request import body_parts, read_request
from ale_jax.sandbox.egress.streams import CHUNK, EgressLimits, EgressRefusal, Incoming
from tests.rows import each_row
from tests.sandbox.egress.world import HTTP


class Pieces:
    """A reader whose bytes come in pieces of `size`."""

    def __init__(self, data, size=CHUNK):
        self.data, self.size = data, size

    async def read(self, n):
        taken, self.data = self.data[: min(n, self.size)], self.data[min(n, self.size) :]
        return taken


def read(data, size=CHUNK, limits=EgressLimits()):  # noqa: B008
    """The request that `data` begins with, and what follows its head."""

    async def run():
        incoming = Incoming(Pieces(data, size))
        return await read_request(incoming, limits), await incoming.exactly(1 << 20)

    return asyncio.run(run())


def read_body(data, body_bytes, size=CHUNK):
    """The body as it is sent on, and what is left of `data`."""

    async def run():
        incoming = Incoming(Pieces(data, size))
        parts = [part async for part in body_parts(incoming, body_bytes)]
        return b"".join(parts), await incoming.exactly(1 << 20)

    return asyncio.run(run())


def head(*lines):
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


@each_row("size", [1, 2, 3, 7, CHUNK])
def test_what_is_between_us_and_the_sandbox_is_left_out(size):
    request, rest = read(
        head(
            f"POST {HTTP}Site.TEST:8080/a?b=%00c HTTP/1.1",
            "Host: elsewhere.test",
            "Content-Length: 3",
            "Proxy-Authorization: Basic c2VjcmV0",
            "Proxy-Connection: keep-alive",
            "proxy-anything: x",
            "Connection: keep-alive, X-Private, Content-Length, host",
            "Keep-Alive: timeout=5",
            "TE: trailers",
            "Upgrade: websocket",
            "X-Private: p",
            "Accept:\t*/*  ",
            "Cookie: a=\xe9",
            "cookie: b",
        )
        + b"abc",
        size,
    )
    assert request.authority == Authority("site.test", 8080) and request.body_bytes == 3
    assert request.head == head(
        "POST /a?b=%00c HTTP/1.1",
        "Host: site.test:8080",
        "Content-Length: 3",
        "Accept: */*",
        "Cookie: a=\xe9",
        "cookie: b",
        "Connection: close",
    )
    assert rest == b"abc"


@each_row(
    "target, first, host",
    [
        ("site.test", "GET / HTTP/1.0", "site.test"),
        ("site.test:80/", "GET / HTTP/1.0", "site.test"),
        ("site.test.:443?q", "GET /?q HTTP/1.0", "site.test:443"),
        ("[2606:4700:0::1]/x//y?z=[1]@\\", "GET /x//y?z=[1]@\\ HTTP/1.0", "[2606:4700::1]"),
    ],
)
def test_the_path_and_the_host_are_those_of_the_target(target, first, host):
    request, _ = read(head(f"GET {HTTP}{target} HTTP/1.0"))
    assert request.head == head(first, f"Host: {host}", "Connection: close")


def test_a_tunnel_has_a_port_and_nothing_else():
    request, rest = read(head("CONNECT Site.test:443 HTTP/1.1", "User-Agent: x") + b"\x16\x03")
    assert request.authority == Authority("site.test", 443)
    assert request.head is None and rest == b"\x16\x03"


GOOD = [f"POST {HTTP}a.test/ HTTP/1.1", "Host: a.test", "Accept: */*"]
MALFORMED = {
    "nothing": [],
    "empty line first": ["", *GOOD],
    "no target": ["GET HTTP/1.1"],
    "no version": [f"GET {HTTP}a.test/"],
    "two spaces": [f"GET  {HTTP}a.test/ HTTP/1.1"],
    "a space in the target": [f"GET {HTTP}a.test/ b HTTP/1.1"],
    "a tab for a space": [f"GET\t{HTTP}a.test/ HTTP/1.1"],
    "a space after the version": [f"GET {HTTP}a.test/ HTTP/1.1 "],
    "HTTP/2": ["PRI * HTTP/2.0"],
    "HTTP/1.2": [f"GET {HTTP}a.test/ HTTP/1.2"],
    "HTTP/0.9": [f"GET {HTTP}a.test/ HTTP/0.9"],
    "http in small letters": [f"GET {HTTP}a.test/ http/1.1"],
    "a method that is no token": [f"GE(T {HTTP}a.test/ HTTP/1.1"],
    "path only": ["GET / HTTP/1.1", "Host: a.test"],
    "asterisk": ["OPTIONS * HTTP/1.1", "Host: a.test"],
    "https": [f"GET {HTTP.replace('p:', 'ps:')}a.test/ HTTP/1.1"],
    "no scheme": ["GET a.test/ HTTP/1.1"],
    "a fragment": [f"GET {HTTP}a.test/#x HTTP/1.1"],
    "user and password": [f"GET {HTTP}u:s3cret@a.test/ HTTP/1.1"],
    "a backslash before the path": [f"GET {HTTP}a.test\\@b.test/ HTTP/1.1"],
    "no host": [f"GET {HTTP}/ HTTP/1.1"],
    "an empty port": [f"GET {HTTP}a.test:/ HTTP/1.1"],
    "port 0": [f"GET {HTTP}a.test:0/ HTTP/1.1"],
    "NUL in the host": [f"GET {HTTP}a.test\0.b.test/ HTTP/1.1"],
    "escape in the host": [f"GET {HTTP}a%2etest/ HTTP/1.1"],
    "NUL in the path": [f"GET {HTTP}a.test/\0 HTTP/1.1"],
    "beyond ASCII in the path": [f"GET {HTTP}a.test/\xe9 HTTP/1.1"],
    "CONNECT without a port": ["CONNECT a.test HTTP/1.1"],
    "CONNECT to a URL": [f"CONNECT {HTTP}a.test:80/ HTTP/1.1"],
    "CONNECT with a body": ["CONNECT a.test:443 HTTP/1.1", "Content-Length: 1"],
    "CONNECT with chunks": ["CONNECT a.test:443 HTTP/1.1", "Transfer-Encoding: chunked"],
    "connect in small letters": ["connect a.test:443 HTTP/1.1"],
    "two hosts": [*GOOD, "host: a.test"],
    "a folded line": [*GOOD, " folded"],
    "a line folded by a tab": [*GOOD, "\tfolded"],
    "a folded first header": [GOOD[0], " Host: a.test"],
    "no colon": [*GOOD, "nothing"],
    "no name": [*GOOD, ": x"],
    "a space before the colon": [*GOOD, "Content-Length : 3"],
    "a space in a name": [*GOOD, "Content Length: 3"],
    "NUL in a name": [*GOOD, "X\0: y"],
    "NUL in a value": [*GOOD, "X: y\0z"],
    "CR in a value": [*GOOD, "X: y\rContent-Length: 3"],
    "LF in a value": [*GOOD, "X: y\nContent-Length: 3"],
    "LF before the end": [*GOOD, "X: y\n"],
    "DEL in a value": [*GOOD, "X: \x7f"],
    "length and chunks": [*GOOD, "Content-Length: 3", "Transfer-Encoding: chunked"],
    "chunks and length": [*GOOD, "Transfer-Encoding: chunked", "Content-Length: 3"],
    "two lengths": [*GOOD, "Content-Length: 3", "Content-Length: 4"],
    "twice the same length": [*GOOD, "Content-Length: 3", "Content-Length: 3"],
    "a list of lengths": [*GOOD, "Content-Length: 3, 3"],
    "a length with a sign": [*GOOD, "Content-Length: +3"],
    "a negative length": [*GOOD, "Content-Length: -3"],
    "a hexadecimal length": [*GOOD, "Content-Length: 0x3"],
    "a length with an underscore": [*GOOD, "Content-Length: 1_0"],
    "a superscript for a length": [*GOOD, "Content-Length: \xb2"],
    "an empty length": [*GOOD, "Content-Length:"],
    "an endless length": [*GOOD, "Content-Length: " + "9" * 19],
    "another coding": [*GOOD, "Transfer-Encoding: gzip, chunked"],
    "identity": [*GOOD, "Transfer-Encoding: identity"],
    "chunked with a space before": [*GOOD, "Transfer-Encoding: \x0bchunked"],
    "chunked twice": [*GOOD, "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
    "chunked, chunked": [*GOOD, "Transfer-Encoding: chunked, chunked"],
    "chunks in HTTP/1.0": [f"POST {HTTP}a.test/ HTTP/1.0", "Transfer-Encoding: chunked"],
}


def test_what_the_malformed_ones_are_made_of_is_in_order():
    assert read(head(*GOOD))[0].body_bytes == 0
    assert read(head(*GOOD, "Transfer-Encoding: Chunked"))[0].body_bytes is None


@each_row("lines", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_request_is_refused(lines):
    with pytest.raises(EgressRefusal) as caught:
        read(head(*lines))
    assert caught.value.status == 400
    assert b"s3cret" not in caught.value.answer() and "s3cret" not in repr(caught.value.__cause__)


@each_row("end", [b"\n\n", b"\r\r", b"\n\r\n", b"\r\n\n", b"\r\n\r", b"\r\n"])
@each_row("size", [1, CHUNK])
def test_every_line_ends_in_cr_lf(end, size):
    with pytest.raises(EgressRefusal) as caught:
        read(head(*GOOD)[:-4] + end, size)
    assert caught.value.status == 400


def test_a_bare_line_feed_is_refused_without_waiting_for_more():
    class First(Pieces):
        async def read(self, n):
            assert self.data, "waits for more"
            return await super().read(n)

    async def run():
        await read_request(Incoming(First(GOOD[0].encode() + b"\n")), EgressLimits())

    with pytest.raises(EgressRefusal, match="CR LF"):
        asyncio.run(run())


@each_row("size", [1, CHUNK])
def test_a_head_has_no_more_lines_and_bytes_than_it_may(size):
    fits = [GOOD[0], "A: b", "C: d"]
    few, short = EgressLimits(headers=2), EgressLimits(head_bytes=len(head(*fits)))
    for limits in (few, short):
        assert read(head(*fits), size, limits)[0].body_bytes == 0
    for limits, lines in (
        (few, [*fits, "E:"]),
        (short, [GOOD[0], "A: b", "C: dd"]),
        (short, [GOOD[0] + "x" * 99]),
    ):
        with pytest.raises(EgressRefusal) as caught:
            read(head(*lines), size, limits)
        assert caught.value.status == 431


def test_an_endless_line_is_not_kept():
    class Endless:
        given = 0

        async def read(self, n):
            Endless.given += n
            return b"x" * n

    with pytest.raises(EgressRefusal):
        asyncio.run(read_request(Incoming(Endless()), EgressLimits()))
    assert Endless.given <= CHUNK


def test_a_target_that_no_request_has_is_refused_in_one_pass():
    """Else a million characters would take hours."""
    limits = EgressLimits(head_bytes=1 << 22)
    with pytest.raises(EgressRefusal, match="full http URL"):
        read(head("GET http://" + "a" * 1_000_000 + "# HTTP/1.1", "Host: a"), limits=limits)


CHUNKED = b"3\r\nabc\r\n0A\r\n0123456789\r\n0\r\n\r\n"


@each_row("size", [1, 2, 3, 5, CHUNK])
def test_a_body_ends_where_it_said(size):
    assert read_body(b"abcGET /", 3, size) == (b"abc", b"GET /")
    assert read_body(b"GET /", 0, size) == (b"", b"GET /")
    body, rest = read_body(CHUNKED + b"GET /", None, size)
    assert rest == b"GET /"
    assert re.sub(rb"\r\n", b"", body).endswith(b"0") and unchunked(body) == b"abc0123456789"


def unchunked(data):
    """What a server makes of chunks; a second way of reading them."""
    content = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        if int(size, 16) == 0:
            assert data == b"\r\n"
            return content
        content, data = content + data[: int(size, 16)], data[int(size, 16) :]
        assert data.startswith(b"\r\n")
        data = data[2:]


WRONG_CHUNKS = [
    b"",
    b"3\r\nab",
    b"3\r\nabcd\r\n0\r\n\r\n",
    b"3\r\nabc\n0\r\n\r\n",
    b"3\nabc\r\n0\r\n\r\n",
    b"3 \r\nabc\r\n0\r\n\r\n",
    b" 3\r\nabc\r\n0\r\n\r\n",
    b"+3\r\nabc\r\n0\r\n\r\n",
    b"-3\r\nabc\r\n0\r\n\r\n",
    b"0x3\r\nabc\r\n0\r\n\r\n",
    b"1_0\r\nabc\r\n0\r\n\r\n",
    b"3;a=b\r\nabc\r\n0\r\n\r\n",
    b"3;\nabc\r\n0\r\n\r\n",
    b"\r\nabc\r\n0\r\n\r\n",
    b"3\r\nabc\r\n0\r\nX: y\r\n\r\n",
    b"3\r\nabc\r\n0\r\n\n",
    b"3\r\nabc\r\n0\r\n",
    b"3\r\nabc\r\n",
    b"00000000000000003\r\nabc\r\n0\r\n\r\n",
]


@each_row("data", WRONG_CHUNKS)
@each_row("size", [1, CHUNK])
def test_wrong_chunks_are_refused(data, size):
    with pytest.raises(EgressRefusal) as caught:
        read_body(data, None, size)
    assert caught.value.rule == "request"


def test_a_body_that_ends_early_is_refused():
    with pytest.raises(EgressRefusal, match="early"):
        read_body(b"ab", 3)


HOSTILE = st.sampled_from(
    [
        *(b"%c" % byte for byte in b"\r\n\0 \t:\x0b\x85\xff,;@#?"),
        b"\r\n",
        b"\r\n\r\n",
        b"Host: b.test\r\n",
        b"Content-Length: 5\r\n",
        b"\r\nTransfer-Encoding: chunked",
    ]
)
CUTS = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 3), HOSTILE | st.binary(max_size=3)))
VALID = head(f"POST {HTTP}a.test:81/p HTTP/1.1", "Host: a.test", "Content-Length: 4", "X: y, z")


@given(CUTS, st.integers(1, 50))
@example([], 1)
def test_what_is_sent_on_is_one_request_however_hostile_the_head(cuts, size):
    data = VALID
    for at, length, inserted in cuts:
        data = data[:at] + inserted + data[at + length :]
    try:
        request, _ = read(data, size)
    except EgressRefusal as refusal:
        assert refusal.status in (400, 431)
        return
    if request.head is not None:
        check_is_one_request(request)


def check_is_one_request(request):
    """Reads the head by the letter of RFC 9112, and nothing that has a second reading."""
    first, *headers = request.head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    assert request.head.endswith(b"\r\n\r\n") and request.head.count(b"\r\n\r\n") == 1
    assert re.fullmatch(rb"[!-~]+ /[!-~]* HTTP/1\.[01]", first)
    for header in headers:
        assert re.fullmatch(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\t -~\x80-\xff]*", header), header
    names = [header.partition(b":")[0].lower() for header in headers]
    values = dict(zip(names, (header.partition(b": ")[2] for header in headers)))
    own = str(request.authority).removesuffix(":80")
    assert names.count(b"host") == 1 and values[b"host"].decode() == own
    assert names.count(b"connection") == 1 and values[b"connection"] == b"close"
    framing = [name for name in names if name in (b"content-length", b"transfer-encoding")]
    assert framing in ([], [b"content-length"], [b"transfer-encoding"])
    if framing == [b"content-length"]:
        assert int(values[b"content-length"]) == request.body_bytes
    elif framing:
        assert values[b"transfer-encoding"].lower() == b"chunked" and request.body_bytes is None
    else:
        assert request.body_bytes == 0


@given(st.binary(max_size=300), st.integers(1, 50))
def test_any_bytes_are_a_request_or_a_refusal(data, size):
    with pytest.raises(EgressRefusal):
        read(data, size)


@given(st.binary(max_size=100), st.integers(1, 50))
def test_any_bytes_are_chunks_or_a_refusal(data, size):
    try:
        body, rest = read_body(data, None, size)
    except EgressRefusal:
        return
    assert data.endswith(rest) and len(unchunked(body)) < len(data)

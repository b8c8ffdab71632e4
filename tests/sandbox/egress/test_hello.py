"""The server name of a TLS hello: OpenSSL's own, and hostile ones."""

import asyncio
import ssl
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ale_jax.sandbox.egress.policy import Authority
from ale_jax.sandbox.egress.request import MAX_HELLO, read_hello, server_name
from ale_jax.sandbox.egress.streams import CHUNK, EgressRefusal, Incoming
from tests.rows import each_row
from tests.sandbox.egress.test_request import Pieces

SITE = Authority("site.test", 443)


def openssl_hello(name):
    """The first flight of a real client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def vector(width, content):
    return len(content).to_bytes(width, "big") + content


def extension(kind, content):
    return struct.pack(">H", kind) + vector(2, content)


def name_extension(*names, kind=0):
    return extension(0, vector(2, b"".join(bytes([kind]) + vector(2, name) for name in names)))


def body(*extensions):
    start = b"\x03\x03" + bytes(32) + vector(1, bytes(32)) + vector(2, b"\x13\x01") + b"\x01\x00"
    return start + vector(2, b"".join(extensions))


def records(message, size=1 << 14):
    pieces = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + vector(2, piece) for piece in pieces)


def hello(*extensions):
    return b"\x01" + vector(3, body(*extensions))


def judge(data, size=CHUNK, authority=SITE):
    """What is passed on of `data` before the rest of it."""

    async def run():
        incoming = Incoming(Pieces(data, size))
        return await read_hello(incoming, authority), await incoming.exactly(1 << 20)

    return asyncio.run(run())


@each_row("size", [1, 4, CHUNK])
def test_a_hello_that_names_the_host_passes_unchanged(size):
    data = openssl_hello("site.test")
    assert b"site.test" in data
    assert judge(data + b"more", size) == (data, b"more")


@each_row("name", ["other.test", "sub.site.test", "xsite.test", "site.tes"])
def test_a_hello_that_names_another_host_is_refused(name):
    with pytest.raises(EgressRefusal, match="differs from CONNECT"):
        judge(openssl_hello(name))


def test_a_hello_without_a_name_passes():
    data = openssl_hello(None)
    assert judge(data) == (data, b"")
    old = b"\x01" + vector(3, body()[:-2])  # no extensions at all
    assert judge(records(old)) == (records(old), b"")
    assert judge(records(hello(extension(43, b"\x02\x03\x04"))))[1] == b""


@each_row("name", [b"SITE.test", b"site.TEST."])
def test_the_name_is_compared_in_its_one_spelling(name):
    assert judge(records(hello(name_extension(name))))


def test_a_tunnel_to_an_address_is_not_to_a_name():
    address = Authority("8.8.8.8", 443)
    assert judge(openssl_hello(None), authority=address)
    with pytest.raises(EgressRefusal):
        judge(openssl_hello("site.test"), authority=address)


@each_row("size", [1, 2, 50])
def test_a_name_is_found_across_records(size):
    mine = records(hello(extension(21, bytes(300)), name_extension(b"site.test")), size)
    assert judge(mine + b"rest") == (mine, b"rest")
    with pytest.raises(EgressRefusal, match="differs from CONNECT"):
        judge(records(hello(name_extension(b"other.test")), size))


def test_what_follows_in_the_last_record_is_passed_on_with_it():
    data = records(hello(name_extension(b"site.test")) + b"\x0b\0\0\0")
    assert judge(data) == (data, b"")


@each_row("data", [b"", b"SSH-2.0-x\r\n", b"\x16", b"\x16\x02\x01", b"\x80\x2e\x01\x03"])
def test_what_is_not_tls_is_left_alone(data):
    assert judge(data, 1) == (b"", data)


def test_what_is_not_tls_is_not_kept_waiting():
    class Banner:
        parts = [b"S"]  # noqa: RUF012

        async def read(self, n):
            return self.parts.pop()

    assert asyncio.run(read_hello(Incoming(Banner()), SITE)) == b""


GOOD = hello(name_extension(b"site.test"))
UNREADABLE = {
    "cut off in its head": records(GOOD)[:4],
    "cut off": records(GOOD)[:-1],
    "an empty record": b"\x16\x03\x01\0\0" + records(GOOD),
    "too long a record": records(GOOD + bytes(1 << 14), 1 << 15),
    "another record in the middle": records(GOOD[:9]) + b"\x17\x03\x03" + vector(2, GOOD[9:]),
    "another message": records(b"\x02" + GOOD[1:]),
    "too long a message": records(b"\x01" + vector(3, bytes(MAX_HELLO + 1))),
    "two names": records(hello(name_extension(b"site.test", b"other.test"))),
    "two lists of names": records(hello(*[name_extension(b"site.test")] * 2)),
    "a list of no names": records(hello(name_extension())),
    "another kind of name": records(hello(name_extension(b"site.test", kind=1))),
    "an empty name": records(hello(name_extension(b""))),
    "a name with a NUL": records(hello(name_extension(b"site.test\0"))),
    "a name beyond ASCII": records(hello(name_extension("sité.test".encode()))),
    "bytes after the list": records(
        hello(extension(0, vector(2, b"\0" + vector(2, b"site.test")) + b"x"))
    ),
    "an extension that is too long": records(hello(b"\0\0\xff\xff")),
    "half an extension": records(hello(b"\0")),
    "nothing at all": records(b"\x01\0\0\0"),
}


@each_row("data", UNREADABLE.values(), ids=UNREADABLE)
@each_row("size", [1, CHUNK])
def test_a_hello_that_cannot_be_read_is_refused(data, size):
    with pytest.raises(EgressRefusal) as caught:
        judge(data, size)
    assert (caught.value.status, caught.value.rule) == (403, "server_name")


@given(st.binary(max_size=400))
def test_any_bytes_are_a_hello_or_a_value_error(data):
    try:
        name = server_name(data)
    except ValueError:
        return
    assert name is None or name.encode() in data


@given(st.binary(max_size=200), st.integers(1, 30))
def test_what_passes_is_what_was_sent(data, size):
    for sent in (data, b"\x16\x03" + data, records(b"\x01" + data) if data else b""):
        try:
            passed, rest = judge(sent, size)
        except EgressRefusal:
            continue
        assert passed + rest == sent

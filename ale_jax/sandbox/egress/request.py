"""Strict parsing of what a sandbox sends to the proxy: the head of a request, its body up to its
last byte, and the server name in a TLS ClientHello.

RFC 8446, sections 4.1.2 and 5.1; RFC 6066, section 3.

The parser is strict because two parsers that disagree on where a request ends can be made to see
different requests. h11 is not used, because it accepts and repairs bare line feeds, folded lines,
repeated equal content-lengths, and a content-length together with chunks.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence

from ale_jax.sandbox.egress.policy import Authority, bracketed, canonical_host, parse_authority
from ale_jax.sandbox.egress.streams import CHUNK, EgressLimits, EgressRefusal, Incoming, malformed

HANDSHAKE, CLIENT_HELLO = 0x16, 1
RECORD_HEAD, MESSAGE_HEAD = 5, 4
MAX_RECORD = 1 << 14
MAX_HELLO = 1 << 14
SERVER_NAME, HOST_NAME = 0, 0
UNRECOGNIZED_NAME = bytes([0x15, 3, 3, 0, 2, 2, 112])  # a fatal alert


async def read_hello(incoming: Incoming, authority: Authority) -> bytes:
    """Reads the start of a tunnel to `authority`: a whole ClientHello, or nothing if it is not TLS.

    A ClientHello without a server name is accepted. Encrypted content is not checked.

    Errors: Refusal if it is TLS and names another server than `authority`, or cannot be read;
    OSError.
    """
    if await incoming.ahead(1) != b"\x16" or await incoming.ahead(2) != b"\x16\x03":
        return b""
    records, message = bytearray(), bytearray()
    while len(message) < MESSAGE_HEAD or len(message) < _message_bytes(message):
        record = await _read_record(incoming)
        records += record
        message += record[RECORD_HEAD:]
    try:
        name = server_name(bytes(message[MESSAGE_HEAD : _message_bytes(message)]))
        same = name is None or canonical_host(name) == authority.host
    except ValueError as error:
        raise _unreadable() from error
    if not same:
        raise EgressRefusal(
            403, "server_name", f"the TLS server name differs from CONNECT {authority}"
        )
    return bytes(records)


def server_name(hello: bytes) -> str | None:
    """The server name in a ClientHello, or None. hello: message body; ValueError if malformed."""
    fields = _Fields(hello)
    fields.take(2 + 32)  # version, random
    for width in (1, 2, 1):  # session, ciphers, compressions
        fields.vector(width)
    if not fields:
        return None
    extensions, names = fields.vector(2), []
    while extensions:
        kind, content = extensions.number(2), extensions.vector(2)
        if kind == SERVER_NAME:
            names.append(_host_name(content))
    if len(names) > 1:
        raise ValueError("several lists of server names")
    return names[0] if names else None


def _host_name(extension: _Fields) -> str:
    entries = extension.vector(2)
    kind, name = entries.number(1), entries.vector(2)
    if kind != HOST_NAME or entries or extension:
        raise ValueError("not one host name")
    return name.rest().decode("ascii")


class _Fields:
    """Reads consecutive fields. ValueError if too few bytes are left."""

    def __init__(self, data: bytes):
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        if self._at + count > len(self._data):
            raise ValueError("a field is longer than its container")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def vector(self, width: int) -> _Fields:
        """Reads a field with a length prefix. width: bytes of the prefix."""
        return _Fields(self.take(self.number(width)))

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)


async def _read_record(incoming: Incoming) -> bytes:
    head = await incoming.exactly(RECORD_HEAD)
    length = int.from_bytes(head[3:], "big")
    if len(head) < RECORD_HEAD or head[:2] != b"\x16\x03" or not 1 <= length <= MAX_RECORD:
        raise _unreadable()
    return head + await incoming.exactly(length)


def _message_bytes(message: bytearray) -> int:
    """Size of the whole message, from its head."""
    length = MESSAGE_HEAD + int.from_bytes(message[1:MESSAGE_HEAD], "big")
    if message[0] != CLIENT_HELLO or length > MAX_HELLO:
        raise _unreadable()
    return length


def _unreadable() -> EgressRefusal:
    return EgressRefusal(
        403, "server_name", "the TLS ClientHello with the server name cannot be read"
    )


CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,16}")
SIZE_LINE_BYTES = 18


async def body_parts(incoming: Incoming, body_bytes: int | None) -> AsyncIterator[bytes]:
    """Yields the body to forward: `body_bytes` bytes, or re-encoded chunks if that is None.

    Chunk extensions and trailers are refused, because they are not needed and servers disagree on
    how to parse them.

    Errors: Refusal, OSError.
    """
    if body_bytes is not None:
        async for part in _counted(incoming, body_bytes):
            yield part
        return
    while size := await _chunk_size(incoming):
        yield b"%x\r\n" % size
        async for part in _counted(incoming, size):
            yield part
        await _end_of_line(incoming)
        yield b"\r\n"
    await _end_of_line(incoming)
    yield b"0\r\n\r\n"


async def _counted(incoming: Incoming, count: int) -> AsyncIterator[bytes]:
    while count:
        part = await incoming.read(min(count, CHUNK))
        if not part:
            raise malformed("the body ends too early")
        count -= len(part)
        yield part


async def _chunk_size(incoming: Incoming) -> int:
    line = await incoming.line(SIZE_LINE_BYTES)
    if not CHUNK_SIZE.fullmatch(line):
        raise malformed("a chunk does not begin with only its size")
    return int(line, 16)


async def _end_of_line(incoming: Incoming) -> None:
    if await incoming.exactly(2) != b"\r\n":
        raise malformed("a chunk does not end where its size says, or the last one has trailers")


TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
VISIBLE = re.compile(r"[\x21-\x7e]+")
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
# There is one way to divide a text into the two, so that a refusal takes no longer than a match.
TARGET = re.compile(r"http://(?P<authority>[^/?#]*)(?P<path>([/?][^#]*)?)", re.IGNORECASE)
LENGTH = re.compile(r"[0-9]{1,18}")
VERSIONS = ("HTTP/1.0", "HTTP/1.1")
HTTP_PORT = 80
FRAMING = {"content-length", "transfer-encoding"}
AT_MOST_ONCE = ("host", *sorted(FRAMING))
# Headers that are meant for this proxy only, or that it writes itself. All headers that begin with
# "proxy-" are dropped as well.
NOT_PASSED_ON = {"connection", "host", "http2-settings", "keep-alive", "te", "trailer", "upgrade"}

Headers = Sequence[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Request:
    """A parsed request.

    authority: where it leads.
    head: the head to forward; None for a tunnel (CONNECT).
    body_bytes: size of the body; None if it comes in chunks.
    """

    authority: Authority
    head: bytes | None
    body_bytes: int | None


async def read_request(incoming: Incoming, limits: EgressLimits) -> Request:
    """Reads the head of a request. Errors: Refusal, OSError."""
    lines, room = [], limits.head_bytes
    while line := await incoming.line(room):
        lines.append(line.decode("latin-1"))
        room -= len(line) + 2
        if len(lines) > 1 + limits.headers:
            raise EgressRefusal(431, "request", "the request has too many headers")
    if not lines:
        raise malformed("the request begins with an empty line")
    return parse_request(lines)


def parse_request(lines: Sequence[str]) -> Request:
    """lines: of the head, without line endings, decoded as Latin-1. Errors: Refusal."""
    method, target, version = _parse_request_line(lines[0])
    headers = [_parse_header(line) for line in lines[1:]]
    body_bytes = _body_bytes(headers, version)
    if method == "CONNECT":
        if body_bytes != 0:
            raise malformed("a CONNECT has no body")
        return Request(_authority(target, None), None, 0)
    if method.upper() == "TRACE":  # a proxy further on would answer with our request, and its login
        raise malformed("TRACE is not passed on")
    match = TARGET.fullmatch(target)
    if match is None:
        raise malformed("this is a proxy: request a full http URL, or CONNECT HOST:PORT")
    authority = _authority(match["authority"], HTTP_PORT)
    path = match["path"] if match["path"].startswith("/") else "/" + match["path"]
    head = _head(f"{method} {path} {version}", authority, headers)
    return Request(authority, head, body_bytes)


def _parse_request_line(line: str) -> tuple[str, str, str]:
    parts = line.split(" ")
    if len(parts) != 3 or not TOKEN.fullmatch(parts[0]) or not VISIBLE.fullmatch(parts[1]):
        raise malformed("the request line is not METHOD TARGET VERSION")
    if parts[2] not in VERSIONS:
        raise malformed(f"the version of HTTP is not one of {', '.join(VERSIONS)}")
    return parts[0], parts[1], parts[2]


def _parse_header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not TOKEN.fullmatch(name) or CONTROL.search(value):
        raise malformed("a header is not NAME: VALUE on one line")
    return name, value.strip(" \t")


def _authority(text: str, default_port: int | None) -> Authority:
    try:
        return parse_authority(text, default_port)
    except ValueError:  # its message quotes the text, which may contain a password
        line = "the target is not a host and a port (a proxy accepts no user names)"
        raise malformed(line) from None


def _body_bytes(headers: Headers, version: str) -> int | None:
    counts = Counter(name.lower() for name, _ in headers)
    for name in AT_MOST_ONCE:
        if counts[name] > 1:
            raise malformed(f"several {name} headers")
    values = {name.lower(): value for name, value in headers}
    length, coding = values.get("content-length"), values.get("transfer-encoding")
    if coding is not None:
        if length is not None:
            raise malformed("both content-length and transfer-encoding")
        if coding.lower() != "chunked" or version == "HTTP/1.0":
            raise malformed("a transfer-encoding that is not chunked, or is in HTTP/1.0")
        return None
    if length is not None and not LENGTH.fullmatch(length):
        raise malformed("content-length is not a number of bytes")
    return int(length or 0)


def _head(request_line: str, authority: Authority, headers: Headers) -> bytes:
    own = bracketed(authority.host) if authority.port == HTTP_PORT else str(authority)
    # If "Connection" could remove the body's length, the body would be read as a second request.
    dropped = NOT_PASSED_ON | (_named_by_connection(headers) - FRAMING)
    kept = [
        f"{name}: {value}"
        for name, value in headers
        if name.lower() not in dropped and not name.lower().startswith("proxy-")
    ]
    lines = [request_line, f"Host: {own}", *kept, "Connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1")


def _named_by_connection(headers: Headers) -> set[str]:
    values = (value for name, value in headers if name.lower() == "connection")
    return {option.strip().lower() for value in values for option in value.split(",")}

"""The server name in a TLS ClientHello, by which a shared address tells its sites apart.

RFC 8446, sections 4.1.2 and 5.1; RFC 6066, section 3.
"""

from __future__ import annotations

from ale_jax.sandbox.egress.hosts import Authority, canonical_host
from ale_jax.sandbox.egress.refusal import Refusal
from ale_jax.sandbox.egress.streams import Incoming

HANDSHAKE, CLIENT_HELLO = 0x16, 1
RECORD_HEAD, MESSAGE_HEAD = 5, 4
MAX_RECORD = 1 << 14
MAX_HELLO = 1 << 14
SERVER_NAME, HOST_NAME = 0, 0
UNRECOGNIZED_NAME = bytes([0x15, 3, 3, 0, 2, 2, 112])  # a fatal alert


async def read_hello(incoming: Incoming, authority: Authority) -> bytes:
    """What a tunnel to `authority` begins with: a whole ClientHello, or nothing if it is not TLS.

    Errors: Refusal if it is TLS and names another server than `authority`, or cannot be read;
    OSError. A hello without a name passes. What is said under encryption is nobody's to judge.
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
        raise Refusal(403, "server_name", f"TLS names another server than CONNECT {authority}")
    return bytes(records)


def server_name(hello: bytes) -> str | None:
    """hello: the body of the message. None if it names no server; ValueError if it is malformed."""
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
    """Reads one field after the other. ValueError if there is not enough left."""

    def __init__(self, data: bytes):
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        if self._at + count > len(self._data):
            raise ValueError("a field is longer than what it is in")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def vector(self, width: int) -> _Fields:
        """width: of the length that stands before it."""
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
    """Of the whole message, by its head."""
    length = MESSAGE_HEAD + int.from_bytes(message[1:MESSAGE_HEAD], "big")
    if message[0] != CLIENT_HELLO or length > MAX_HELLO:
        raise _unreadable()
    return length


def _unreadable() -> Refusal:
    return Refusal(403, "server_name", "the TLS hello cannot be read, nor the server that it names")

"""Byte streams to and from a sandbox, their limits, and the refusals that a sandbox receives."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Protocol


@dataclasses.dataclass(frozen=True)
class EgressLimits:
    """Limits of a sandbox's connections through the proxy.

    connections: at the same time.
    head_bytes: size of a request's head, including its first line. headers: number of headers.
    head_seconds: time to send a head.
    connect_seconds: time to look up a name, and the same again to connect.
    idle_seconds: time without a byte in either direction.
    linger_seconds: time to be answered after the sandbox has ended its side.
    recorded: number of refusals that are recorded, so that a sandbox cannot fill the host's disk.
    """

    connections: int = 64
    head_bytes: int = 1 << 15
    headers: int = 100
    head_seconds: float = 10.0
    connect_seconds: float = 10.0
    idle_seconds: float = 120.0
    linger_seconds: float = 10.0
    recorded: int = 200

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            if value <= 0:
                raise ValueError(f"egress limit {name} is {value}; it must be positive")


class EgressRefusal(Exception):
    """A refused request.

    status: HTTP status. rule: one word for what refused it. line: the reason as a sentence.
    detail: more information, which only the host sees.

    A line contains only the canonical host and port of the request. The rest may be secret, or an
    attack on the reader of the line.
    """

    def __init__(self, status: int, rule: str, line: str, detail: str = ""):
        super().__init__(line)
        self.status, self.rule, self.line, self.detail = status, rule, line, detail

    @property
    def kind(self) -> str:
        """The kind of event: the far side failed, or the sandbox was refused."""
        return "egress_failed" if self.status in (502, 504) else "egress_refused"

    def answer(self) -> bytes:
        """The HTTP response. Its reason phrase is `line`, as most clients show only that."""
        body = f"{self.line}\n"
        head = (
            f"HTTP/1.1 {self.status} {self.line}",
            "Content-Type: text/plain",
            f"Content-Length: {len(body)}",
            "Connection: close",
        )
        return ("\r\n".join(head) + "\r\n\r\n" + body).encode("ascii")


def timed_out(what: str, detail: str = "") -> EgressRefusal:
    return EgressRefusal(504, "timeout", f"{what} in time", detail)


def malformed(line: str) -> EgressRefusal:
    return EgressRefusal(400, "request", line)


CHUNK = 1 << 16
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Reader(Protocol):
    """Data from a sandbox, like asyncio.StreamReader. Errors: OSError if the sandbox is gone."""

    async def read(self, n: int) -> bytes:
        """Reads 1 to `n` bytes; b"" when the sandbox has ended its side."""


class Writer(Protocol):
    """Data to a sandbox, like asyncio.StreamWriter."""

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None:
        """Waits until more may be written. Errors: OSError if the sandbox is gone."""

    def close(self) -> None:
        """Ends reading and writing. Data that was drained still arrives."""


class Incoming:
    """A reader with lookahead. It may read up to one chunk beyond what was requested."""

    def __init__(self, reader: Reader):
        self._reader = reader
        self._held = bytearray()

    async def read(self, count: int = CHUNK) -> bytes:
        """Reads up to `count` bytes; none at the end."""
        return self._take(count) if self._held else await self._reader.read(count)

    async def exactly(self, count: int) -> bytes:
        """Reads `count` bytes; fewer at the end."""
        await self.ahead(count)
        return self._take(count)

    async def ahead(self, count: int) -> bytes:
        """As `exactly`, but does not consume them."""
        while len(self._held) < count and await self._read_more():
            pass
        return bytes(self._held[:count])

    async def line(self, room: int) -> bytes:
        """Reads a line and drops its CR LF. Refusal if that is not within the next `room` bytes."""
        searched = 0
        while (end := self._held.find(b"\n", searched, max(room, 0))) < 0:
            searched = len(self._held)
            if searched >= room:
                raise EgressRefusal(
                    431,
                    "request",
                    "a line of the request, or all its headers together, are too long",
                )
            if not await self._read_more():
                raise malformed("the request ends in the middle of a line")
        line = self._take(end + 1)
        if not line.endswith(b"\r\n"):
            raise malformed("a line of the request does not end in CR LF")
        return line[:-2]

    def _take(self, count: int) -> bytes:
        taken = bytes(self._held[:count])
        del self._held[:count]
        return taken

    async def _read_more(self) -> bool:
        data = await self._reader.read(CHUNK)
        self._held += data
        return bool(data)

"""Bytes to and from a sandbox, the limits on them, and the refusals that a sandbox is sent."""

from __future__ import annotations

import dataclasses
from typing import Protocol


@dataclasses.dataclass(frozen=True)
class Limits:
    """connections: at once. head_bytes, headers: of a request, its first line included.

    head_seconds: to send a head. connect_seconds: to look a name up, and again to connect.
    idle_seconds: without a byte either way. linger_seconds: to be answered after the sandbox has
    said that it sends no more. recorded: refusals; a sandbox shall not fill the host's disk.
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


class Refusal(Exception):
    """status: of HTTP. rule: which one refused, in one word. line: the same in plain words.

    Nothing of the request is in a line but the host and the port, in canonical spelling: the rest
    may be secret, or an attack on whoever reads the line.
    detail: for the host's eyes only.
    """

    def __init__(self, status: int, rule: str, line: str, detail: str = ""):
        super().__init__(line)
        self.status, self.rule, self.line, self.detail = status, rule, line, detail

    @property
    def kind(self) -> str:
        """Of the event: the far side failed, or the near side was refused."""
        return "egress_failed" if self.status in (502, 504) else "egress_refused"

    def answer(self) -> bytes:
        """The line is the reason phrase as well: most clients show no more of a refused CONNECT."""
        body = f"{self.line}\n"
        head = (
            f"HTTP/1.1 {self.status} {self.line}",
            "Content-Type: text/plain",
            f"Content-Length: {len(body)}",
            "Connection: close",
        )
        return ("\r\n".join(head) + "\r\n\r\n" + body).encode("ascii")


def malformed(line: str) -> Refusal:
    return Refusal(400, "request", line)


CHUNK = 1 << 16


class Reader(Protocol):
    """What a sandbox sends; an asyncio.StreamReader is one. Errors: OSError if it is gone."""

    async def read(self, n: int) -> bytes:
        """At least one byte and at most `n`; nothing when the sandbox sends no more."""


class Writer(Protocol):
    """What a sandbox is sent; an asyncio.StreamWriter is one."""

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None:
        """Returns when more may be written. Errors: OSError if the sandbox is gone."""

    def close(self) -> None:
        """No more is written or read. What was drained still arrives."""


class Incoming:
    """A reader that can be looked ahead of, by one chunk more than was asked for."""

    def __init__(self, reader: Reader):
        self._reader = reader
        self._held = bytearray()

    async def read(self, count: int = CHUNK) -> bytes:
        """Up to `count` bytes; none at the end."""
        return self._take(count) if self._held else await self._reader.read(count)

    async def exactly(self, count: int) -> bytes:
        """`count` bytes; fewer at the end."""
        await self.ahead(count)
        return self._take(count)

    async def ahead(self, count: int) -> bytes:
        """As `exactly`, but they are still there afterwards."""
        while len(self._held) < count and await self._read_more():
            pass
        return bytes(self._held[:count])

    async def line(self, room: int) -> bytes:
        """The next line without its CR LF. Refusal if that is not in the next `room` bytes."""
        searched = 0
        while (end := self._held.find(b"\n", searched, max(room, 0))) < 0:
            searched = len(self._held)
            if searched >= room:
                raise Refusal(
                    431, "request", "a line of the request, or all its headers, are too long"
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

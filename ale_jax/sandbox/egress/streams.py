"""Bytes from and to a sandbox, and what is read ahead of them."""

from __future__ import annotations

from typing import Protocol

from ale_jax.sandbox.egress.refusal import Refusal, malformed

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

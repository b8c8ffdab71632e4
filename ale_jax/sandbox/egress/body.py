"""The body of a request, on its way from a sandbox; not a byte beyond its end."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from ale_jax.sandbox.egress.refusal import malformed
from ale_jax.sandbox.egress.streams import CHUNK, Incoming

CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,16}")
SIZE_LINE_BYTES = 18


async def body_parts(incoming: Incoming, body_bytes: int | None) -> AsyncIterator[bytes]:
    """As it is to be sent on: `body_bytes` bytes, or chunks, written anew, if that is None.

    Errors: Refusal, OSError. Extensions of chunks and trailers are refused: nobody needs them, and
    servers disagree on how to read them.
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
            raise malformed("the body ends early")
        count -= len(part)
        yield part


async def _chunk_size(incoming: Incoming) -> int:
    line = await incoming.line(SIZE_LINE_BYTES)
    if not CHUNK_SIZE.fullmatch(line):
        raise malformed("a chunk does not begin with its size alone")
    return int(line, 16)


async def _end_of_line(incoming: Incoming) -> None:
    if await incoming.exactly(2) != b"\r\n":
        raise malformed("a chunk does not end where it said, or trailers follow the last one")

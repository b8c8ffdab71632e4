"""Leads connections that are made inside a sandbox to one address outside, and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from ale_jax.sandbox.link import Stream
from ale_jax.sandbox.runner import wire

CONNECT_S = 10.0


def relay_to(host: str, port: int) -> Callable[[Stream], Awaitable[None]]:
    """Serves each connection by joining it with one to host:port. If there is none to be had, the
    connection inside is closed."""

    async def serve(stream: Stream) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError):
            return
        outward = asyncio.create_task(_outward(stream, writer))
        try:
            while data := await reader.read(wire.CHUNK):
                await stream.send(data)
        except OSError:
            pass  # the far side is gone, which the inside sees by the end of its connection
        finally:
            outward.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await outward
            writer.close()

    return serve


async def _outward(stream: Stream, writer: asyncio.StreamWriter) -> None:
    while (received := await stream.receive()) is not None:
        _, data = received
        writer.write(data)
        await writer.drain()
    writer.write_eof()

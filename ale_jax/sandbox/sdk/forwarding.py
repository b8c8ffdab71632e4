"""Ports of this machine at which programs in a sandbox of the service answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.sdk.streams import AsyncPipes

PIECE = 32 << 10
HERE = "127.0.0.1"

log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def forwarded(connect: Callable[[], AsyncPipes], local: int) -> AsyncIterator[int]:
    """Joins each connection to a port of this machine's loopback with one of `connect`; yields the
    port. local: 0: any that is free. Errors: OSError if it is in use; ValueError if it is none."""
    if not 0 <= local <= 65535:
        raise ValueError(f"the local port {local} must be 0..65535")
    loop, open_ones = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    # Not asyncio's server, which leaves a connection open that comes while it is closed.
    async def accept(listener: socket.socket) -> None:
        while True:
            here, _ = await loop.sock_accept(listener)
            task = loop.create_task(_serve(connect(), here))
            open_ones.add(task)
            task.add_done_callback(open_ones.discard)

    with socket.create_server((HERE, local)) as listener:
        listener.setblocking(False)
        accepting = loop.create_task(accept(listener))
        try:
            yield listener.getsockname()[1]
        finally:
            ending = [accepting, *open_ones]
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
        if not accepting.cancelled():
            accepting.result()  # raises what has ended it


async def _serve(far: AsyncPipes, here: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=here)
    try:
        await _join(far, reader, writer)
    except (SandboxError, ValueError) as error:
        log.warning("a forwarded connection ended: %s", error)
    except OSError:
        pass  # the program here hung up
    finally:
        writer.close()


async def _join(
    far: AsyncPipes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    async with far:
        inward = asyncio.create_task(_send(reader, far))
        try:
            async for _, data in far:
                writer.write(data)
                await writer.drain()
        finally:
            inward.cancel()
            await asyncio.gather(inward, return_exceptions=True)


async def _send(reader: asyncio.StreamReader, far: AsyncPipes) -> None:
    while data := await reader.read(PIECE):
        await far.send(data)
    await far.send(b"")

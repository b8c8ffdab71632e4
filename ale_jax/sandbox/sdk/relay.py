"""The client's end of a relay: dials, from this process, for programs in a sandbox of a service."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from ale_jax.sandbox.api import SandboxLost
from ale_jax.sandbox.relay import Dialer, Serve, carry
from ale_jax.sandbox.sdk.calls import failure
from ale_jax.sandbox.sdk.streams import opening, pieces

BROKEN = "the connection to the service broke while the relay was open"


@contextlib.asynccontextmanager
async def relayed(
    url: str, options: Mapping[str, Any], id: str, port: int, serve: Serve
) -> AsyncIterator[None]:
    """Calls `serve`, in this process, for each connection to `port` of the sandbox's loopback.
    options: of the WebSocket.

    Errors: SandboxError if the port is in use, SandboxGone. If the relay broke during the block,
    its end raises the reason, such as SandboxLost: whatever ran in the sandbox had no relay then.
    """
    where = f"ws{url.removeprefix('http')}/v1/sandboxes/{quote(id, safe='')}/relay?port={port}"
    async with contextlib.AsyncExitStack() as stack:
        with opening(where, id):
            connection = await stack.enter_async_context(connect(where, **options))
        await _opened(connection, id)
        dialer = Dialer(serve)
        stack.callback(dialer.close)
        carrying = asyncio.create_task(carry(dialer, _Service(connection, id)))
        try:
            yield
            if carrying.done():
                await carrying
        finally:
            carrying.cancel()
            await asyncio.gather(carrying, return_exceptions=True)


async def _opened(connection: ClientConnection, id: str) -> None:
    try:
        first = await connection.recv()
    except ConnectionClosed as error:
        raise SandboxLost(BROKEN) from error
    if not isinstance(first, str) or "open" not in json.loads(first):
        raise failure(200, first if isinstance(first, bytes) else first.encode(), id)


class _Service:
    """The service as what leads to the sandbox's end of a tunnel."""

    def __init__(self, connection: ClientConnection, id: str):
        self._connection, self._id = connection, id

    async def receive(self) -> tuple[str, bytes]:
        """Errors: the one that the service reports; SandboxLost."""
        try:
            frame = await self._connection.recv()
        except ConnectionClosed as error:
            raise SandboxLost(BROKEN) from error
        if not isinstance(frame, bytes):
            raise failure(200, frame.encode(), self._id)
        return "frames", frame

    async def write(self, data: bytes) -> None:
        try:
            for piece in pieces(data):
                await self._connection.send(piece)
        except ConnectionClosed as error:
            raise SandboxLost(BROKEN) from error

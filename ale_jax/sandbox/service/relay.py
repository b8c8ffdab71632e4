"""A relay over a WebSocket: programs in a sandbox reach one address that the client can reach."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

from fastapi import APIRouter, Query, WebSocket, WebSocketDisconnect

from ale_jax.sandbox.pool.api import Carried, SandboxPool
from ale_jax.sandbox.service.terminal import converse

router = APIRouter()
Port = Annotated[int, Query(ge=1024, lt=1 << 16)]


@router.websocket("/v1/sandboxes/{id}/relay")
async def relay(websocket: WebSocket, id: str, port: Port) -> None:
    """The service never dials: it carries the bytes of a tunnel (`sandbox/relay.py`) between the
    sandbox and the client, which serves each connection as it likes.

    The first frame is {"open": true} once `port` of the sandbox's loopback listens; then binary
    frames carry the tunnel's bytes, cut anywhere; the last is {"error": {...}}. When the client
    disconnects, the port is closed and its connections end.
    """

    async def attend(pool: SandboxPool) -> dict[str, Any]:
        async with pool.relay(id, port) as tunnel:
            await websocket.send_text(json.dumps({"open": True}))
            await _carry(websocket, tunnel)

    await converse(websocket, id, attend)


async def _carry(websocket: WebSocket, tunnel: Carried) -> None:
    """Carries both ways until one of them ends, which raises the reason."""
    ways = [asyncio.ensure_future(each(websocket, tunnel)) for each in (_outward, _inward)]
    try:
        done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in done:
            await way
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _outward(websocket: WebSocket, tunnel: Carried) -> None:
    while True:
        _, data = await tunnel.receive()
        await websocket.send_bytes(data)


async def _inward(websocket: WebSocket, tunnel: Carried) -> None:
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1006))
        if message.get("bytes") is None:
            raise ValueError("a relay takes binary frames only")
        await tunnel.write(message["bytes"])

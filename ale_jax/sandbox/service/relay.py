"""A relay over a WebSocket: programs in a sandbox reach one address that the client can reach."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query, WebSocket, WebSocketDisconnect

from ale_jax.sandbox.pool.api import SandboxPool
from ale_jax.sandbox.relay import carry
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
            await carry(tunnel, _Client(websocket))

    await converse(websocket, id, attend)


class _Client:
    """The client as the far end of a tunnel."""

    def __init__(self, websocket: WebSocket):
        self._websocket = websocket

    async def receive(self) -> tuple[str, bytes]:
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1006))
        if message.get("bytes") is None:
            raise ValueError("a relay takes binary frames only")
        return "frames", message["bytes"]

    async def write(self, data: bytes) -> None:
        await self._websocket.send_bytes(data)

"""What a client and a sandbox exchange over a WebSocket: an interactive command, on a terminal or
on pipes; a connection to a program in the sandbox; and a relay, by which programs in a sandbox
reach one address that the client reaches."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Depends, Query, WebSocket, WebSocketDisconnect

from ale_jax.sandbox.async_sandbox import MAX_SIZE
from ale_jax.sandbox.pool.api import SandboxPool
from ale_jax.sandbox.relay import carry
from ale_jax.sandbox.service.access import ServiceSettings
from ale_jax.sandbox.service.caller import Caller
from ale_jax.sandbox.service.protocol import Refusal, refusal_of

FAILED = 1011  # close code of an internal error (RFC 6455)
# Input that the command has not read yet, in frames and in bytes. The calls that a token has by
# default then hold as much as its default `buffer_mb` allows. A client that sends more has to wait
# until the command has read, for so long.
MAX_FRAMES, MAX_BYTES = 256, 512 << 10
UNREAD_S = 30.0
MAX_COMMAND = ServiceSettings.json_bytes  # as where it comes in a body

Message = MutableMapping[str, Any]

log = logging.getLogger(__name__)

router = APIRouter()
Size = Annotated[int, Query(ge=0, le=MAX_SIZE)]
CommandBytes = Annotated[int, Query(ge=0, le=MAX_COMMAND)]
# The first byte of a frame with output of pipes.
CHANNELS = {"stdout": b"\1", "stderr": b"\2"}


class TerminalProcess(Protocol):
    """What is needed of a `SandboxProcess` on a terminal. `wait` is called once `receive` returns
    None."""

    async def receive(self) -> tuple[str, bytes] | None: ...

    async def write(self, data: bytes) -> None: ...

    async def resize(self, rows: int, columns: int) -> None: ...

    async def wait(self) -> int: ...


class OffersTerminals(Protocol):
    """What a pool must provide besides `SandboxPool`."""

    def terminal(
        self, id: str, command: str, rows: int, columns: int, user: str = ""
    ) -> AbstractAsyncContextManager[TerminalProcess]:
        """Runs a bash command on a terminal of its own; it ends with the block. rows: 0: on pipes;
        then writing empty data closes its standard input. user: empty: the agent's."""

    def connect(self, id: str, port: int) -> AbstractAsyncContextManager[TerminalProcess]:
        """As `AsyncSandbox.connected`."""


def size_of(rows: Size = 24, columns: Size = 80) -> tuple[int, int]:
    return rows, columns


@router.websocket("/v1/sandboxes/{id}/terminal")
async def terminal(
    websocket: WebSocket,
    id: str,
    size: Annotated[tuple[int, int], Depends(size_of)],
    command: str = "bash -i",
    command_bytes: CommandBytes = 0,
    user: str = "",
) -> None:
    """Binary frames carry the input and output. The client's text frames are
    {"resize": [ROWS, COLUMNS]}; the last frame is text: {"exit": CODE} or {"error": {...}}.
    The command ends when the client disconnects.

    With rows=0 it has pipes instead. Output frames then begin with a byte, 1 for stdout and 2 for
    stderr; an empty frame closes the input; and each frame of input is answered by the text
    {"read": BYTES} once the command may have the next one.

    A command that is too long for a URL comes in the first binary frames: `command_bytes` together.
    """
    rows, columns = size

    async def attend(pool: SandboxPool, own: str) -> dict[str, Any]:
        line = await _command(websocket, command_bytes) if command_bytes else command
        async with _offer(pool).terminal(own, line, rows, columns, user) as job:
            return {"exit": await _attend(websocket, job, on_pipes=not rows)}

    await converse(websocket, id, attend)


async def converse(
    websocket: WebSocket, id: str, attend: Callable[[SandboxPool, str], Awaitable[dict[str, Any]]]
) -> None:
    """Attends to a connection about a sandbox of the caller's. Its last frame is what `attend`
    returns, to which the pool and its id of the sandbox are passed, or says why it failed."""
    await websocket.accept()
    scope = websocket.scope
    caller = Caller(websocket.app.state.pool, scope["tenant"], scope["ticket"])
    try:
        await caller.check(id)
        with caller.naming():
            last = await attend(caller.pool, caller.pools_id(id))
    except WebSocketDisconnect:
        return
    except Exception as error:
        refusal = refusal_of(error)
        if refusal.kind == "internal":
            log.exception("a connection failed")
        await _end(websocket, refusal.content(), FAILED)
    else:
        await _end(websocket, last, 1000)


async def _command(websocket: WebSocket, size: int) -> str:
    await websocket.scope["ticket"].hold(size)
    content = b""
    while len(content) < size:
        content += await websocket.receive_bytes()
    if len(content) > size:
        raise ValueError(f"the command has more than the {size} bytes that were announced")
    return content.decode("utf-8", "replace")


def _offer(pool: SandboxPool) -> OffersTerminals:
    if not hasattr(pool, "terminal"):
        raise Refusal(501, "unsupported", "this pool offers no terminals", "use run or exec")
    return pool


class _Unread:
    """Frames of input, up to MAX_FRAMES and MAX_BYTES, but at least one."""

    def __init__(self):
        self._frames: asyncio.Queue[Message] = asyncio.Queue(MAX_FRAMES)
        self._bytes = 0
        self._read = asyncio.Condition()

    async def put(self, frame: Message) -> None:
        """Waits for room. Errors: Refusal (429) if there is none for UNREAD_S."""
        try:
            async with asyncio.timeout(UNREAD_S), self._read:
                await self._read.wait_for(lambda: self._has_room(_length(frame)))
        except TimeoutError as error:
            message = f"the command has not read its input for {UNREAD_S:g} s"
            raise Refusal(429, "not_read", message) from error
        self._bytes += _length(frame)
        self._frames.put_nowait(frame)

    async def get(self) -> Message:
        frame = await self._frames.get()
        async with self._read:
            self._bytes -= _length(frame)
            self._read.notify()
        return frame

    def _has_room(self, more: int) -> bool:
        if self._frames.empty():
            return True
        return not self._frames.full() and self._bytes + more <= MAX_BYTES


def _length(frame: Message) -> int:
    return len(frame.get("bytes") or frame.get("text") or b"")


async def _attend(websocket: WebSocket, job: TerminalProcess, on_pipes: bool) -> int:
    """Transfers frames both ways until the command ends or the client disconnects
    (WebSocketDisconnect)."""
    frames = _Unread()
    shown = asyncio.ensure_future(_show(websocket, job, on_pipes))
    typing = _feed(websocket, frames, job) if on_pipes else _type(frames, job)
    others = [asyncio.ensure_future(each) for each in (_listen(websocket, frames), typing)]
    try:
        await asyncio.wait((shown, *others), return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            if task.done() and not shown.done():
                await task  # raises, because only an error ends it
        await shown
        return await job.wait()
    finally:
        for task in (shown, *others):
            task.cancel()
        await asyncio.gather(shown, *others, return_exceptions=True)


async def _listen(websocket: WebSocket, frames: _Unread) -> None:
    """Receives separately from `_type`, so that a disconnect is noticed even while the command
    reads nothing, unless so much is unread that the client has to wait."""
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1006))
        await frames.put(message)


async def _type(frames: _Unread, job: TerminalProcess) -> None:
    while True:
        message = await frames.get()
        if message.get("bytes"):
            await job.write(message["bytes"])
        elif message.get("text") is not None:
            await job.resize(*_size(message["text"]))


async def _feed(websocket: WebSocket, frames: _Unread, job: TerminalProcess) -> None:
    is_open = True
    while True:
        data = (await frames.get()).get("bytes")
        if data is None:
            raise ValueError("text frames resize a terminal, and this command has none")
        if is_open:
            await job.write(data)
            is_open = bool(data)
        await websocket.send_text(json.dumps({"read": len(data)}))


def _size(text: str) -> tuple[int, int]:
    """Errors: ValueError."""
    try:
        rows, columns = json.loads(text)["resize"]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f'text {text!r:.80} must be {{"resize": [ROWS, COLUMNS]}}') from error
    if not all(type(each) is int and 1 <= each <= MAX_SIZE for each in (rows, columns)):
        raise ValueError(f"resize {text!r:.80} must have whole numbers, 1..{MAX_SIZE}")
    return rows, columns


async def _show(websocket: WebSocket, job: TerminalProcess, on_pipes: bool) -> None:
    while (piece := await job.receive()) is not None:
        kind, data = piece
        await websocket.send_bytes(CHANNELS[kind] + data if on_pipes else data)


async def _end(websocket: WebSocket, content: dict[str, Any], code: int) -> None:
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # the client disconnected first
        await websocket.send_text(json.dumps(content))
        await websocket.close(code)


Port = Annotated[int, Query(ge=1024, lt=1 << 16)]
Inside = Annotated[int, Query(ge=1, lt=1 << 16)]


@router.websocket("/v1/sandboxes/{id}/relay")
async def relay(websocket: WebSocket, id: str, port: Port) -> None:
    """The service never dials: it carries the bytes of a tunnel (`sandbox/relay.py`) between the
    sandbox and the client, which serves each connection as it likes.

    The first frame is {"open": true} once `port` of the sandbox's loopback listens; then binary
    frames carry the tunnel's bytes, cut anywhere; the last is {"error": {...}}. When the client
    disconnects, the port is closed and its connections end.
    """

    async def attend(pool: SandboxPool, own: str) -> dict[str, Any]:
        async with pool.relay(own, port) as tunnel:
            await websocket.send_text(json.dumps({"open": True}))
            await carry(tunnel, _RelayClient(websocket))

    await converse(websocket, id, attend)


@router.websocket("/v1/sandboxes/{id}/connect")
async def connect(websocket: WebSocket, id: str, port: Inside) -> None:
    """One connection to `port` of the sandbox's loopback. The frames are those of a command on
    pipes: what the program inside sends begins with a byte, 1; an empty frame ends your side; the
    last frame is {"exit": 0} when the program has ended its side, or {"error": {...}}.
    """

    async def attend(pool: SandboxPool, own: str) -> dict[str, Any]:
        async with _offer(pool).connect(own, port) as connection:
            return {"exit": await _attend(websocket, connection, on_pipes=True)}

    await converse(websocket, id, attend)


class _RelayClient:
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

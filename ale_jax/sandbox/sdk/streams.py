"""What stays open between a client and the service: the output of a process, streamed line by line,
and over a WebSocket, interactive commands and relays."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import ClassVar, Self
from urllib.parse import quote, urlencode

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from ale_jax.sandbox.api import SandboxError, SandboxLost
from ale_jax.sandbox.relay import Dialer, Serve, carry
from ale_jax.sandbox.sdk.calls import CONNECT_S, failure, unreachable

Piece = tuple[str, bytes]
BROKEN = "the stream broke before the process ended"


class AsyncOutput(contextlib.AbstractAsyncContextManager["AsyncOutput"]):
    """Yields ("stdout" | "stderr", bytes) as they arrive; `exit_code` is set after the last one:

        async with box.spawn("make") as output:
            async for kind, data in output: ...

    Leaving the block before the end ends the process.
    """

    def __init__(self, http: httpx.AsyncClient, request: httpx.Request, id: str):
        self.exit_code: int | None = None
        self._http, self._request, self._id = http, request, id
        self._answer: httpx.Response | None = None

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self._read(self._open_answer)

    async def close(self) -> None:
        await self._open_answer.aclose()

    async def __aenter__(self) -> AsyncOutput:
        try:
            answer = await self._http.send(self._request, stream=True)
        except httpx.TransportError as error:
            raise unreachable(self._request, error) from error
        if not answer.is_success:
            body = await answer.aread()
            await answer.aclose()
            raise failure(answer.status_code, body, self._id)
        self._answer = answer
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def _open_answer(self) -> httpx.Response:
        assert self._answer is not None, "use it in an `async with` block"
        return self._answer

    async def _read(self, answer: httpx.Response) -> AsyncIterator[Piece]:
        try:
            async for line in answer.aiter_lines():
                if piece := self._piece(line):
                    yield piece
        except (httpx.TransportError, httpx.StreamError) as error:
            raise SandboxLost(f"{BROKEN}: {error}") from error
        if self.exit_code is None:
            raise SandboxLost(BROKEN)

    def _piece(self, line: str) -> Piece | None:
        """Returns None for the last line. Errors: the one that the service reports."""
        if self.exit_code is not None:
            raise SandboxLost(f"the service sent a line after the last one: {line!r:.80}")
        try:
            ((kind, value),) = json.loads(line).items()
            data = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
            code = int(value) if kind == "exit" else None
        except (ValueError, TypeError, AttributeError) as error:
            raise SandboxLost(f"the service sent an invalid line: {line!r:.80}") from error
        if kind == "error":
            raise failure(200, line.encode(), self._id)
        if code is not None:
            self.exit_code = code
            return None
        return kind, data


MAX_FRAME = 1 << 20
MAX_SENT = 32 << 10  # bytes per frame; the service accepts up to 64 KiB


@dataclasses.dataclass(frozen=True)
class WebSockets:
    """How WebSockets of one service are opened. url: of the service. tls: None without it."""

    url: str
    token: str | None
    tls: ssl.SSLContext | None

    @contextlib.asynccontextmanager
    async def opened(
        self, id: str, what: str, query: Mapping[str, str | int]
    ) -> AsyncIterator[ClientConnection]:
        """Yields a connection about the sandbox `id`. Errors: SandboxError."""
        path = f"/v1/sandboxes/{quote(id, safe='')}/{what}?{urlencode(query)}"
        opening = connect(
            f"ws{self.url.removeprefix('http')}{path}",
            additional_headers={"Authorization": f"Bearer {self.token}"} if self.token else {},
            ssl=self.tls,
            max_size=MAX_FRAME,
            open_timeout=CONNECT_S,
            proxy=None,
        )
        async with contextlib.AsyncExitStack() as stack:
            try:
                connection = await stack.enter_async_context(opening)
            except InvalidStatus as error:
                raise failure(error.response.status_code, bytes(error.response.body), id) from error
            except (OSError, TimeoutError) as error:
                raise SandboxError(
                    f"no connection to {self.url} ({error}); type: ale-sandbox serve"
                ) from error
            yield connection


CHANNELS = {b"\1": "stdout", b"\2": "stderr"}
TERMINAL_BROKEN = "the connection broke before the terminal's command ended"


MAX_QUERY = 4000  # bytes in a URL; a longer command is sent afterwards


@dataclasses.dataclass(frozen=True)
class Interaction:
    """What is executed in the sandbox `id`. rows: 0: on pipes. user: empty: the agent's."""

    route: ClassVar[str] = "terminal"
    id: str
    command: str
    rows: int
    columns: int
    user: str

    @property
    def query(self) -> dict[str, str | int]:
        later, size = self.later, {"rows": self.rows, "columns": self.columns}
        told = {"command_bytes": len(later)} if later else {"command": self.command}
        return {**size, **told, "user": self.user}

    @property
    def later(self) -> bytes:
        """The command, if it has no place in the query."""
        is_long = len(quote(self.command, errors="replace")) > MAX_QUERY
        return self.command.encode("utf-8", "replace") if is_long else b""


@dataclasses.dataclass(frozen=True)
class ToPort:
    """A connection to `port` of the sandbox `id`."""

    route: ClassVar[str] = "connect"
    later: ClassVar[bytes] = b""
    id: str
    port: int

    @property
    def query(self) -> dict[str, str | int]:
        return {"port": self.port}


class _Interactive:
    """A command whose input is sent while its output arrives. exit_code: None until it has ended.
    Leaving the block ends it."""

    def __init__(self, sockets: WebSockets, what: Interaction | ToPort):
        self.exit_code: int | None = None
        self._id, self._what = what.id, what
        self._opening = sockets.opened(what.id, what.route, what.query)
        self._connection: ClientConnection | None = None

    async def close(self) -> None:
        """Ends the command, if it still runs."""
        await self._open_connection.close()

    async def __aenter__(self) -> Self:
        self._connection = await self._opening.__aenter__()
        for piece in _pieces(self._what.later):
            await self._connection.send(piece)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._opening.__aexit__(kind, error, traceback)

    @property
    def _open_connection(self) -> ClientConnection:
        assert self._connection is not None, "use it in an `async with` block"
        return self._connection

    async def _receive(self) -> bytes | str:
        try:
            return await self._open_connection.recv()
        except ConnectionClosed as error:
            raise SandboxLost(TERMINAL_BROKEN) from error

    def _end(self, frame: str) -> None:
        """Reads the last frame. Errors: the one that the service reports."""
        content = json.loads(frame)
        if "error" in content:
            raise failure(200, frame.encode(), self._id)
        self.exit_code = int(content["exit"])


class AsyncTerminal(_Interactive):
    """A command on a terminal. Yields the terminal's output."""

    async def send(self, data: bytes) -> None:
        """Sends keyboard input."""
        for piece in _pieces(data):
            await self._open_connection.send(piece)

    async def resize(self, rows: int, columns: int) -> None:
        await self._open_connection.send(json.dumps({"resize": [rows, columns]}))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while isinstance(frame := await self._receive(), bytes):
            yield frame
        self._end(frame)


MAX_UNREAD = 16  # frames of input that the service has and the command has not
NO_INPUT = "the command takes no more input: it has ended, or its connection is closed"


class AsyncPipes(_Interactive):
    """A command on pipes, or a connection, which is all "stdout". Yields ("stdout" | "stderr",
    bytes)."""

    def __init__(self, sockets: WebSockets, what: Interaction | ToPort):
        super().__init__(sockets, what)
        self._room = asyncio.Semaphore(MAX_UNREAD)
        self._is_over = False

    async def send(self, data: bytes) -> None:
        """Sends input, and waits while the command does not read it. Empty data closes it.

        Errors: SandboxError once the command has ended or the connection is closed.
        """
        for piece in _pieces(data) or [b""]:
            await self._room.acquire()
            if self._is_over:
                self._room.release()  # for the next one who waits
                raise SandboxError(NO_INPUT)
            try:
                await self._open_connection.send(piece)
            except ConnectionClosed as error:
                raise SandboxError(NO_INPUT) from error

    async def close(self) -> None:
        self._refuse_input()
        await super().close()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._refuse_input()
        await super().__aexit__(kind, error, traceback)

    async def __aiter__(self) -> AsyncIterator[Piece]:
        while isinstance(frame := await self._receive(), bytes) or "read" in json.loads(frame):
            if isinstance(frame, bytes):
                yield CHANNELS[frame[:1]], frame[1:]
            else:
                self._room.release()
        self._refuse_input()
        self._end(frame)

    async def _receive(self) -> bytes | str:
        try:
            return await super()._receive()
        except SandboxLost:
            self._refuse_input()
            raise

    def _refuse_input(self) -> None:
        self._is_over = True
        self._room.release()


RELAY_BROKEN = "the connection to the service broke while the relay was open"


@contextlib.asynccontextmanager
async def relayed(sockets: WebSockets, id: str, port: int, serve: Serve) -> AsyncIterator[None]:
    """Calls `serve`, in this process, for each connection to `port` of the sandbox's loopback.

    Errors: SandboxError if the port is in use, SandboxGone. If the relay broke during the block,
    its end raises the reason, such as SandboxLost: whatever ran in the sandbox had no relay then.
    """
    async with sockets.opened(id, "relay", {"port": port}) as connection:
        tunnel = _Tunnel(connection, id)
        await tunnel.opened()
        dialer = Dialer(serve)
        carrying = asyncio.create_task(carry(dialer, tunnel))
        try:
            yield
            if carrying.done():
                await carrying
        finally:
            carrying.cancel()
            await asyncio.gather(carrying, return_exceptions=True)
            dialer.close()


class _Tunnel:
    """The service as what leads to the sandbox's end of a tunnel. Errors of every method: the one
    that the service reports; SandboxLost."""

    def __init__(self, connection: ClientConnection, id: str):
        self._connection, self._id = connection, id

    async def opened(self) -> None:
        """Waits until the sandbox's port listens."""
        first = await self._frame()
        if not isinstance(first, str) or "open" not in json.loads(first):
            raise failure(200, first if isinstance(first, bytes) else first.encode(), self._id)

    async def receive(self) -> tuple[str, bytes]:
        frame = await self._frame()
        if not isinstance(frame, bytes):
            raise failure(200, frame.encode(), self._id)
        return "frames", frame

    async def write(self, data: bytes) -> None:
        try:
            for piece in _pieces(data):
                await self._connection.send(piece)
        except ConnectionClosed as error:
            raise SandboxLost(RELAY_BROKEN) from error

    async def _frame(self) -> bytes | str:
        try:
            return await self._connection.recv()
        except ConnectionClosed as error:
            raise SandboxLost(RELAY_BROKEN) from error


def _pieces(data: bytes) -> list[bytes]:
    return [data[start : start + MAX_SENT] for start in range(0, len(data), MAX_SENT)]

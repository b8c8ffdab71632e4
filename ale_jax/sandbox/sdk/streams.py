"""The output of a process, streamed line by line by the service, and interactive terminals over a
WebSocket."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Self
from urllib.parse import quote, urlencode

import httpx
from websockets.asyncio.client import ClientConnection as AsyncConnection
from websockets.asyncio.client import connect as connect_async
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from ale_jax.sandbox.api import SandboxError, SandboxLost
from ale_jax.sandbox.sdk.calls import CONNECT_S, failure, unreachable

Piece = tuple[str, bytes]
BROKEN = "the stream broke before the process ended"


class Lines:
    """Parses the stream's lines for one sandbox. exit_code: None until the last line."""

    def __init__(self, id: str):
        self._id = id
        self.exit_code: int | None = None

    def piece(self, line: str) -> Piece | None:
        """Returns None for the last line. Errors: the one that the service reports."""
        if self.exit_code is not None:
            raise SandboxLost(f"the service sent a line after the last one: {line!r:.80}")
        try:
            ((kind, value),) = json.loads(line).items()
            data = base64.b64decode(value, validate=True) if isinstance(value, str) else value
        except (ValueError, AttributeError) as error:
            raise SandboxLost(f"the service sent an invalid line: {line!r:.80}") from error
        if kind == "error":
            raise failure(200, line.encode(), self._id)
        if kind == "exit":
            self.exit_code = data
            return None
        return kind, data


class Output(contextlib.AbstractContextManager):
    """Yields ("stdout" | "stderr", bytes) as they arrive; `exit_code` is set after the last one.

    Leaving the `with` block before the end ends the process.
    """

    def __init__(self, http: httpx.Client, request: httpx.Request, id: str):
        self._lines = Lines(id)
        try:
            self._answer = http.send(request, stream=True)
        except httpx.TransportError as error:
            raise unreachable(request, error) from error
        if not self._answer.is_success:
            with contextlib.closing(self._answer):
                raise failure(self._answer.status_code, self._answer.read(), id)
        self._pieces = self._read()

    @property
    def exit_code(self) -> int | None:
        return self._lines.exit_code

    def __iter__(self) -> Iterator[Piece]:
        return self._pieces

    def close(self) -> None:
        self._answer.close()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _read(self) -> Iterator[Piece]:
        with contextlib.closing(self._answer):
            try:
                for line in self._answer.iter_lines():
                    if piece := self._lines.piece(line):
                        yield piece
            except (httpx.TransportError, httpx.StreamError) as error:
                raise SandboxLost(f"{BROKEN}: {error}") from error
            if self.exit_code is None:
                raise SandboxLost(BROKEN)


class AsyncOutput(contextlib.AbstractAsyncContextManager):
    """Like `Output`: `async with box.spawn(...) as output: async for kind, data in output: ...`."""

    def __init__(self, http: httpx.AsyncClient, request: httpx.Request, id: str):
        self._lines = Lines(id)
        self._http, self._request, self._id = http, request, id
        self._answer: httpx.Response | None = None

    @property
    def exit_code(self) -> int | None:
        return self._lines.exit_code

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self._read()

    async def __aenter__(self) -> AsyncOutput:
        try:
            self._answer = await self._http.send(self._request, stream=True)
        except httpx.TransportError as error:
            raise unreachable(self._request, error) from error
        if not self._answer.is_success:
            body = await self._answer.aread()
            await self._answer.aclose()
            raise failure(self._answer.status_code, body, self._id)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._answer.aclose()

    async def _read(self) -> AsyncIterator[Piece]:
        try:
            async for line in self._answer.aiter_lines():
                if piece := self._lines.piece(line):
                    yield piece
        except (httpx.TransportError, httpx.StreamError) as error:
            raise SandboxLost(f"{BROKEN}: {error}") from error
        if self.exit_code is None:
            raise SandboxLost(BROKEN)


MAX_FRAME = 1 << 20
CHANNELS = {b"\1": "stdout", b"\2": "stderr"}
MAX_SENT = 32 << 10  # bytes per frame; the service accepts up to 64 KiB
TERMINAL_BROKEN = "the connection broke before the terminal's command ended"


def terminal_url(url: str, id: str, command: str, rows: int, columns: int) -> str:
    query = urlencode({"rows": rows, "columns": columns, "command": command})
    return f"ws{url.removeprefix('http')}/v1/sandboxes/{quote(id, safe='')}/terminal?{query}"


def _exit_code(frame: str, id: str) -> int:
    """Reads the last frame. Errors: the one that the service reports."""
    content = json.loads(frame)
    if "error" in content:
        raise failure(200, frame.encode(), id)
    return int(content["exit"])


def tls_context(url: str, verify: ssl.SSLContext | str | bool) -> ssl.SSLContext | None:
    """Returns what httpx makes of `verify`; None for http://, because certificates take long to
    load."""
    if not url.startswith("https://"):
        return None
    return httpx.create_ssl_context(verify, trust_env=False)


def connection_options(token: str | None, tls: ssl.SSLContext | None) -> dict[str, Any]:
    """Returns the options of both kinds of WebSocket."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return {
        "additional_headers": headers,
        "ssl": tls,
        "max_size": MAX_FRAME,
        "open_timeout": CONNECT_S,
        "proxy": None,
    }


class Terminal(contextlib.AbstractContextManager):
    """Yields the terminal's output. Another thread may call `send` and `resize` meanwhile.

    options: of the WebSocket. exit_code: None until the command has ended. Leaving the `with` block
    ends it.
    """

    def __init__(self, url: str, options: Mapping[str, Any], id: str):
        self._url, self._options, self._id = url, options, id
        self.exit_code: int | None = None
        self._open = contextlib.ExitStack()
        self._connection: ClientConnection | None = None

    def send(self, data: bytes) -> None:
        """Sends keyboard input."""
        for piece in pieces(data):
            self._connection.send(piece)

    def resize(self, rows: int, columns: int) -> None:
        self._connection.send(json.dumps({"resize": [rows, columns]}))

    def __iter__(self) -> Iterator[bytes]:
        for frame in self._frames():
            if not isinstance(frame, bytes):
                self.exit_code = _exit_code(frame, self._id)
                return
            yield frame

    def _frames(self) -> Iterator[bytes | str]:
        try:
            while True:
                yield self._connection.recv()
        except ConnectionClosed as error:
            raise SandboxLost(TERMINAL_BROKEN) from error

    def __enter__(self) -> Self:
        with opening(self._url, self._id):
            connection = connect(self._url, **self._options)
            self._connection = self._open.enter_context(connection)
        return self

    def close(self) -> None:
        """Ends the command, if it still runs. Any thread may call it."""
        self._connection.close()

    def __exit__(self, *exc: object) -> None:
        self._open.close()


MAX_UNREAD = 16  # frames of input that the service has and the command has not
NO_INPUT = "the command takes no more input: it has ended, or its connection is closed"


class Pipes(Terminal):
    """Like `Terminal`, for a command on pipes: yields ("stdout" | "stderr", bytes)."""

    def __init__(self, url: str, options: Mapping[str, Any], id: str):
        super().__init__(url, options, id)
        self._room = threading.Semaphore(MAX_UNREAD)
        self._is_over = False

    def send(self, data: bytes) -> None:
        """Sends input, and waits while the command does not read it. Empty data closes it.

        Errors: SandboxError once the command has ended or the connection is closed.
        """
        for piece in pieces(data) or [b""]:
            self._room.acquire()
            if self._is_over:
                self._room.release()  # for the next one who waits
                raise SandboxError(NO_INPUT)
            try:
                self._connection.send(piece)
            except ConnectionClosed as error:
                raise SandboxError(NO_INPUT) from error

    def close(self) -> None:
        self._refuse_input()
        super().close()

    def __exit__(self, *exc: object) -> None:
        self._refuse_input()
        super().__exit__(*exc)

    def __iter__(self) -> Iterator[Piece]:
        for frame in self._frames():
            if isinstance(frame, bytes):
                yield CHANNELS[frame[:1]], frame[1:]
            elif "read" in json.loads(frame):
                self._room.release()
            else:
                self._refuse_input()
                self.exit_code = _exit_code(frame, self._id)
                return

    def _frames(self) -> Iterator[bytes | str]:
        try:
            yield from super()._frames()
        except SandboxLost:
            self._refuse_input()
            raise

    def _refuse_input(self) -> None:
        self._is_over = True
        self._room.release()


class AsyncTerminal(contextlib.AbstractAsyncContextManager):
    """Like `Terminal`, with coroutines."""

    def __init__(self, url: str, options: Mapping[str, Any], id: str):
        self._url, self._options, self._id = url, options, id
        self.exit_code: int | None = None
        self._open = contextlib.AsyncExitStack()
        self._connection: AsyncConnection | None = None

    async def send(self, data: bytes) -> None:
        for piece in pieces(data):
            await self._connection.send(piece)

    async def resize(self, rows: int, columns: int) -> None:
        await self._connection.send(json.dumps({"resize": [rows, columns]}))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while isinstance(frame := await self._connection.recv(), bytes):
                yield frame
        except ConnectionClosed as error:
            raise SandboxLost(TERMINAL_BROKEN) from error
        self.exit_code = _exit_code(frame, self._id)

    async def __aenter__(self) -> AsyncTerminal:
        with opening(self._url, self._id):
            connection = connect_async(self._url, **self._options)
            self._connection = await self._open.enter_async_context(connection)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._open.aclose()


def pieces(data: bytes) -> list[bytes]:
    return [data[start : start + MAX_SENT] for start in range(0, len(data), MAX_SENT)]


@contextlib.contextmanager
def opening(url: str, id: str) -> Iterator[None]:
    try:
        yield
    except InvalidStatus as error:
        raise failure(error.response.status_code, error.response.body, id) from error
    except (OSError, TimeoutError) as error:
        where = url.partition("/v1/")[0]
        raise SandboxError(
            f"no connection to {where} ({error}); type: ale-sandbox serve"
        ) from error

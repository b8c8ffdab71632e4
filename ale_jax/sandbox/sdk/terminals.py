"""An interactive terminal in a sandbox, over a WebSocket."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from urllib.parse import quote, urlencode

from websockets.asyncio.client import ClientConnection as AsyncConnection
from websockets.asyncio.client import connect as connect_async
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from ale_jax.sandbox.api import SandboxError, SandboxLost
from ale_jax.sandbox.sdk.exchange import CONNECT_S, failure

MAX_FRAME = 1 << 20
MAX_SENT = 32 << 10  # bytes in a frame; the service takes no more than 64 KiB
BROKEN = "the connection broke before the terminal's command ended"


def terminal_url(url: str, id: str, command: str, rows: int, columns: int) -> str:
    query = urlencode({"rows": rows, "columns": columns, "command": command})
    return f"ws{url.removeprefix('http')}/v1/sandboxes/{quote(id, safe='')}/terminal?{query}"


def _exit_code(frame: str, id: str) -> int:
    """Of the last frame. Errors: what the service says went wrong."""
    content = json.loads(frame)
    if "error" in content:
        raise failure(200, frame.encode(), id)
    return int(content["exit"])


def _options(token: str | None) -> dict:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return {
        "additional_headers": headers,
        "max_size": MAX_FRAME,
        "open_timeout": CONNECT_S,
        "proxy": None,
    }


class Terminal(contextlib.AbstractContextManager):
    """Yields what is to be shown. Another thread may `send` and `resize` meanwhile.

    exit_code: None until the command has ended. Leaving the `with` block ends it.
    """

    def __init__(self, url: str, token: str | None, id: str):
        self._url, self._token, self._id = url, token, id
        self.exit_code: int | None = None
        self._open = contextlib.ExitStack()
        self._connection: ClientConnection | None = None

    def send(self, data: bytes) -> None:
        """What is typed."""
        for piece in _pieces(data):
            self._connection.send(piece)

    def resize(self, rows: int, columns: int) -> None:
        self._connection.send(json.dumps({"resize": [rows, columns]}))

    def __iter__(self) -> Iterator[bytes]:
        try:
            while isinstance(frame := self._connection.recv(), bytes):
                yield frame
        except ConnectionClosed as error:
            raise SandboxLost(BROKEN) from error
        self.exit_code = _exit_code(frame, self._id)

    def __enter__(self) -> Terminal:
        with _opening(self._url, self._id):
            connection = connect(self._url, **_options(self._token))
            self._connection = self._open.enter_context(connection)
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()


class AsyncTerminal(contextlib.AbstractAsyncContextManager):
    """As `Terminal`, with coroutines."""

    def __init__(self, url: str, token: str | None, id: str):
        self._url, self._token, self._id = url, token, id
        self.exit_code: int | None = None
        self._open = contextlib.AsyncExitStack()
        self._connection: AsyncConnection | None = None

    async def send(self, data: bytes) -> None:
        for piece in _pieces(data):
            await self._connection.send(piece)

    async def resize(self, rows: int, columns: int) -> None:
        await self._connection.send(json.dumps({"resize": [rows, columns]}))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while isinstance(frame := await self._connection.recv(), bytes):
                yield frame
        except ConnectionClosed as error:
            raise SandboxLost(BROKEN) from error
        self.exit_code = _exit_code(frame, self._id)

    async def __aenter__(self) -> AsyncTerminal:
        with _opening(self._url, self._id):
            connection = connect_async(self._url, **_options(self._token))
            self._connection = await self._open.enter_async_context(connection)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._open.aclose()


def _pieces(data: bytes) -> list[bytes]:
    return [data[start : start + MAX_SENT] for start in range(0, len(data), MAX_SENT)]


@contextlib.contextmanager
def _opening(url: str, id: str) -> Iterator[None]:
    try:
        yield
    except InvalidStatus as error:
        raise failure(error.response.status_code, error.response.body, id) from error
    except (OSError, TimeoutError) as error:
        where = url.partition("/v1/")[0]
        raise SandboxError(
            f"no terminal from {where} ({error}); type: ale-sandbox serve"
        ) from error

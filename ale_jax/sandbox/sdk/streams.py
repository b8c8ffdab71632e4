"""What a process writes, line by line as the service tells it."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import AsyncIterator, Iterator

import httpx

from ale_jax.sandbox.api import SandboxLost
from ale_jax.sandbox.sdk.exchange import failure, unreachable

Piece = tuple[str, bytes]
BROKEN = "the stream broke before the process ended"


class Lines:
    """Reads the stream's lines for one sandbox. exit_code: None until the last line."""

    def __init__(self, id: str):
        self._id = id
        self.exit_code: int | None = None

    def piece(self, line: str) -> Piece | None:
        """None for the last line. Errors: what the service says went wrong."""
        if self.exit_code is not None:
            raise SandboxLost(f"the service sent more after the end: {line!r:.80}")
        try:
            ((kind, value),) = json.loads(line).items()
            data = base64.b64decode(value, validate=True) if isinstance(value, str) else value
        except (ValueError, AttributeError) as error:
            raise SandboxLost(f"the service sent no line of output: {line!r:.80}") from error
        if kind == "error":
            raise failure(200, line.encode(), self._id)
        if kind == "exit":
            self.exit_code = data
            return None
        return kind, data


class Output(contextlib.AbstractContextManager):
    """Yields ("stdout" | "stderr", bytes) as they come; `exit_code` is there when it is over.

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
    """As `Output`: `async with box.spawn(...) as output: async for kind, data in output: ...`."""

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

"""One connection of a sandbox through the proxy: its two ends, its deadlines, and the relay of
bytes in both directions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine

from ale_jax.sandbox.egress.policy import Authority
from ale_jax.sandbox.egress.request import UNRECOGNIZED_NAME, Request, body_parts, read_hello
from ale_jax.sandbox.egress.streams import (
    CHUNK,
    EgressLimits,
    EgressRefusal,
    Incoming,
    Reader,
    Writer,
)


class EgressConnection:
    """A connection between a sandbox and the host that it asks for.

    authority: where it leads; None until it is requested.
    answered: at least one byte was sent back.
    deadline: a timeout around everything that the connection does; TimeoutError ends it.
    was_cut: it was ended early, so other errors are ignored.
    cut_for: the refusal to send in that case, if any.
    """

    def __init__(self, reader: Reader, writer: Writer, limits: EgressLimits):
        self.incoming = Incoming(reader)
        self.authority: Authority | None = None
        self.answered = False
        self.was_cut = False
        self.cut_for: EgressRefusal | None = None
        self.deadline = asyncio.timeout(None)
        self._lingers = False
        self._writer = writer
        self._upstream: asyncio.StreamWriter | None = None
        self._limits = limits

    def leads_through(self, upstream: asyncio.StreamWriter) -> None:
        self._upstream = upstream
        self.touch()

    async def send(self, data: bytes) -> None:
        """Sends data to the sandbox. Errors: OSError."""
        self.answered = True
        self._writer.write(data)
        await self._writer.drain()
        self.touch()

    async def send_on(self, data: bytes) -> None:
        """Sends data to the far side. Errors: OSError."""
        self._upstream.write(data)
        await self._upstream.drain()
        self.touch()

    def touch(self) -> None:
        """Restarts the idle timeout, after any activity."""
        if not (self._lingers or self.was_cut):
            self._end_in(self._limits.idle_seconds)

    def linger(self) -> None:
        """Starts the linger timeout: the sandbox sends no more, so its client may be gone."""
        if not self.was_cut:
            self._lingers = True
            self._end_in(self._limits.linger_seconds)

    def cut(self, refusal: EgressRefusal | None = None) -> None:
        """Ends the connection at once, so that not one more byte leaves."""
        self.was_cut, self.cut_for = True, refusal
        self._abort()
        self._end_in(0.0)

    async def refuse(self, refusal: EgressRefusal) -> None:
        """Sends the refusal, if the state of the connection and the client still permit it."""
        if self.answered and refusal.rule != "server_name":
            return
        with contextlib.suppress(OSError):  # TimeoutError is one
            async with asyncio.timeout(self._limits.head_seconds):
                self._writer.write(UNRECOGNIZED_NAME if self.answered else refusal.answer())
                await self._writer.drain()

    def close(self) -> None:
        self._abort()
        self._writer.close()

    def _abort(self) -> None:
        # Not close(), which would wait for a far side that does not read.
        if self._upstream is not None:
            self._upstream.transport.abort()

    def _end_in(self, seconds: float) -> None:
        if not self.deadline.expired():  # an expired timeout cannot be rescheduled
            self.deadline.reschedule(asyncio.get_running_loop().time() + seconds)


ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"

Upstream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def tunnel(connection: EgressConnection, upstream: Upstream) -> None:
    """Relays bytes both ways until the far side closes. Errors: Refusal, OSError."""
    reader, writer = upstream

    async def ask() -> None:
        await connection.send_on(await read_hello(connection.incoming, connection.authority))
        while data := await connection.incoming.read():
            await connection.send_on(data)
        writer.write_eof()
        connection.linger()

    await connection.send(ESTABLISHED)
    await _until_answered(ask(), _answer(connection, reader))


async def forward(connection: EgressConnection, request: Request, upstream: Upstream) -> None:
    """Forwards one request, and relays the response until the far side closes.

    Anything that the sandbox sends after the request is ignored.

    Errors: Refusal, OSError.
    """

    async def ask() -> None:
        await connection.send_on(request.head)
        async for part in body_parts(connection.incoming, request.body_bytes):
            await connection.send_on(part)
        if not await connection.incoming.read(1):
            connection.linger()

    try:
        await _until_answered(ask(), _answer(connection, upstream[0]))
    except OSError as error:
        if connection.answered:
            raise
        raise _no_answer(connection) from error
    if not connection.answered:
        raise _no_answer(connection)


async def _answer(connection: EgressConnection, reader: asyncio.StreamReader) -> None:
    while data := await reader.read(CHUNK):
        await connection.send(data)


async def _until_answered(ask: Coroutine, answer: Coroutine) -> None:
    """Runs both until `answer` ends or one of them fails; re-raises that error unwrapped."""
    try:
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(ask)
            await answer
            asking.cancel()
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures


def _no_answer(connection: EgressConnection) -> EgressRefusal:
    return EgressRefusal(
        502, "unreachable", f"{connection.authority} closed the connection without a response"
    )

"""What passes between a sandbox and where it was allowed to connect, both ways at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from ale_jax.sandbox.egress.body import body_parts
from ale_jax.sandbox.egress.connection import Connection
from ale_jax.sandbox.egress.hello import read_hello
from ale_jax.sandbox.egress.refusal import Refusal
from ale_jax.sandbox.egress.request import Request
from ale_jax.sandbox.egress.streams import CHUNK

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"

Upstream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def tunnel(connection: Connection, upstream: Upstream) -> None:
    """Bytes both ways, until the far side closes. Errors: Refusal, OSError."""
    reader, writer = upstream

    async def ask() -> None:
        await connection.send_on(await read_hello(connection.incoming, connection.authority))
        while data := await connection.incoming.read():
            await connection.send_on(data)
        writer.write_eof()
        connection.linger()

    await connection.send(ESTABLISHED)
    await _until_answered(ask(), _answer(connection, reader))


async def forward(connection: Connection, request: Request, upstream: Upstream) -> None:
    """One request, and the answer as it comes, until the far side closes. Errors: Refusal, OSError.

    What follows the request is read by nobody.
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


async def _answer(connection: Connection, reader: asyncio.StreamReader) -> None:
    while data := await reader.read(CHUNK):
        await connection.send(data)


async def _until_answered(ask: Coroutine, answer: Coroutine) -> None:
    """Runs both until `answer` ends, or one of them fails; its error is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(ask)
            await answer
            asking.cancel()
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures


def _no_answer(connection: Connection) -> Refusal:
    return Refusal(502, "unreachable", f"{connection.authority} ended the connection unanswered")

"""The front end's side: a pool whose sandboxes belong to another process."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from ale_jax.sandbox.api import SandboxStats
from ale_jax.sandbox.node import frames
from ale_jax.sandbox.pool.accounting import Room, Usage
from ale_jax.sandbox.pool.api import (
    Events,
    NodeStatus,
    OwnerLimits,
    SnapshotInfo,
    StartRequest,
    Status,
)
from ale_jax.sandbox.service import protocol
from ale_jax.sandbox.service.protocol import Refusal, events_from, record_from
from ale_jax.sandbox.spec import SandboxSpec


class NodeGone(Exception):
    """The other side has closed the connection, does not listen, or breaks the protocol."""


def _events(values: Any) -> Events:
    numbers = values["last"], values["forgotten"]
    answer = events_from({"events": values["events"], "next": 0, "missed": False})
    return Events(answer.events, *numbers)


# How the values of the pool's methods are read; the others are plain data.
PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "start": protocol.START.value,
    "start_many": protocol.START_MANY.value,
    "status": protocol.STATUS.value,
    "statuses": protocol.STATUSES.value,
    "renew": protocol.RENEW.value,
    "fork": protocol.FORK.value,
    "snapshot": protocol.SNAPSHOT.value,
    "nodes": protocol.NODES.value,
    "held": lambda values: record_from(Room, values),
    "usage": lambda values: {owner: record_from(Usage, each) for owner, each in values.items()},
    "events_after": _events,
}
# And those of `call`, by the sandbox's method.
CALL_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "run": protocol.RUN.value,
    "exec": protocol.EXEC.value,
    "expect": protocol.EXPECT.value,
    "job": protocol.JOB.value,
    "list": protocol.LIST.value,
    "stats": lambda values: record_from(SandboxStats, values),
}


class NodeClient:
    """A `SandboxPool` in the process that listens at `address` and knows `token`.

    Closing it closes its connections only: the sandboxes stay. Every method raises Refusal (503) if
    the process is gone. label: of where the sandboxes run; known once it is open.
    """

    def __init__(self, address: Path, token: str):
        self.label = ""
        self._address, self._token = address, token
        self._idle: list[NodeConnection] = []
        self._key: tuple[str, str] | None = None
        self._numbers = itertools.count()

    def for_request(self, tenant: str, id: str) -> NodeClient:
        """The same pool, for what one request of a tenant does: each of its calls is executed once,
        also if the request comes again, through this front end or another."""
        view = copy.copy(self)
        view._key, view._numbers = (tenant, id), itertools.count()
        return view

    async def __aenter__(self) -> NodeClient:
        self._idle.append(await self._connect())
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def cancel_request(self, tenant: str, id: str) -> None:
        """Ends what the other process does for a request (see `for_request`), and what it has
        started without an id of the caller's."""
        await self._ask("cancel_request", tenant, id)

    async def start(self, request: StartRequest, limits: OwnerLimits | None = None) -> Status:
        return await self._change("start", request, terms=_terms(limits))

    async def start_many(
        self, request: StartRequest, count: int, spare: int = 0, limits: OwnerLimits | None = None
    ) -> Sequence[Status]:
        return await self._change("start_many", request, count, spare, terms=_terms(limits))

    async def stop(self, id: str) -> None:
        await self._change("stop", id)

    async def status(self, id: str) -> Status:
        return await self._ask("status", id)

    async def renew(self, id: str, seconds: float) -> Status:
        return await self._change("renew", id, seconds)

    async def held(self, owner: str) -> Room:
        return await self._ask("held", owner)

    async def usage(self) -> Mapping[str, Usage]:
        return await self._ask("usage")

    async def statuses(self) -> Sequence[Status]:
        return await self._ask("statuses")

    async def call(
        self, id: str, method: str, *, generation: int | None = None, **arguments: Any
    ) -> Any:
        value = await self._change("call", id, method, generation=generation, **arguments)
        return CALL_PARSERS.get(method, lambda plain: plain)(value)

    async def stream(
        self, id: str, argv: Sequence[str] | str, **arguments: Any
    ) -> AsyncGenerator[tuple[str, bytes | int], None]:
        async with self._conversation("stream", id, argv, **arguments) as connection:
            while "piece" in (answer := await connection.answer()):
                kind, content = answer["piece"]
                yield kind, content
            _value(answer)

    def terminal(
        self, id: str, command: str, rows: int, columns: int, user: str = ""
    ) -> AbstractAsyncContextManager[NodeTerminal]:
        return self._open("terminal", id, command, rows, columns, user)

    def relay(self, id: str, port: int) -> AbstractAsyncContextManager[NodeTerminal]:
        return self._open("relay", id, port)

    def connect(self, id: str, port: int) -> AbstractAsyncContextManager[NodeTerminal]:
        return self._open("connect", id, port)

    @contextlib.asynccontextmanager
    async def _open(self, what: str, *arguments: Any) -> AsyncIterator[NodeTerminal]:
        async with self._conversation(what, *arguments) as connection:
            if "piece" not in (answer := await connection.answer()):
                _value(answer)
            yield NodeTerminal(connection)

    async def snapshot(self, id: str, max_bytes: int | None = None) -> SnapshotInfo:
        return await self._change("snapshot", id, terms={"max_bytes": max_bytes})

    async def restore(self, id: str, snapshot: str) -> None:
        await self._change("restore", id, snapshot)

    async def fork(
        self, id: str, count: int, max_bytes: int | None = None, limits: OwnerLimits | None = None
    ) -> Sequence[Status]:
        terms = {"max_bytes": max_bytes} | _terms(limits)
        return await self._change("fork", id, count, terms=terms)

    async def warm(self, spec: SandboxSpec, count: int) -> None:
        await self._change("warm", spec, count)

    async def nodes(self) -> Sequence[NodeStatus]:
        return await self._ask("nodes")

    async def events_after(self, number: int) -> Events:
        return await self._ask("events_after", number)

    async def end(self) -> None:
        """Ends the process and all its sandboxes; returns when it has begun to."""
        await self._ask("end")

    async def _change(
        self, what: str, *arguments: Any, terms: Mapping[str, Any] | None = None, **named: Any
    ) -> Any:
        """A call that must not be executed twice. terms: arguments that say what the tenant may
        have. They do not make it another call, as an operator may change them meanwhile."""
        key = self._key and (self._key[0], f"{self._key[1]}/{next(self._numbers)}")
        request = _request(what, arguments, named) | {"key": key, "terms": terms or {}}
        return await self._exchange(request)

    async def _ask(self, what: str, *arguments: Any) -> Any:
        return await self._exchange(_request(what, arguments, {}))

    async def _exchange(self, request: Mapping[str, Any]) -> Any:
        connection = self._idle.pop() if self._idle else await self._connect()
        try:
            await connection.send(request)
            answer = await connection.answer()
        except NodeGone as error:
            connection.close()
            raise self._gone(error) from error
        except BaseException:  # cancelled: its answer may still come
            connection.close()
            raise
        self._idle.append(connection)
        return PARSERS.get(request["do"], lambda plain: plain)(_value(answer))

    @contextlib.asynccontextmanager
    async def _conversation(
        self, what: str, *arguments: Any, **named: Any
    ) -> AsyncIterator[NodeConnection]:
        """A connection of its own, whose end ends what was asked for."""
        connection = await self._connect()
        try:
            await connection.send(_request(what, arguments, named))
            yield connection
        except NodeGone as error:
            raise self._gone(error) from error
        finally:
            connection.close()

    async def _connect(self) -> NodeConnection:
        try:
            try:
                connection = NodeConnection(*await asyncio.open_unix_connection(self._address))
            except (ConnectionError, FileNotFoundError) as error:
                raise NodeGone(f"{error}") from error
            await connection.send({"token": self._token})
            self.label = (await connection.answer())["label"]
        except NodeGone as error:
            raise self._gone(error) from error
        return connection

    def _gone(self, error: NodeGone) -> Refusal:
        where = self._address.parent
        message = f"the process that owns the sandboxes of {where} is gone ({error!s:.200})"
        return Refusal(503, "node_gone", message, "restart the service")


def _request(what: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    return {"do": what, "arguments": arguments, "named": named, "key": None, "terms": {}}


def _terms(limits: OwnerLimits | None) -> dict[str, Any]:
    return {"limits": limits and limits.to_json()}


def _value(answer: dict[str, Any]) -> Any:
    """The value of an answer. Errors: the one that it reports."""
    if "error" in answer:
        raise frames.error_from_json(answer["error"])
    return answer["value"]


class NodeConnection:
    """One connection, for one request at a time. Errors: NodeGone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader, self._writer = reader, writer

    async def send(self, value: Any) -> None:
        try:
            self._writer.write(frames.pack(value))
            await self._writer.drain()
        except ConnectionError as error:
            raise NodeGone(str(error)) from error

    async def answer(self) -> dict[str, Any]:
        try:
            return await frames.read(self._reader)
        except (ConnectionError, EOFError, ValueError) as error:
            raise NodeGone(repr(error)) from error

    def close(self) -> None:
        self._writer.close()


class NodeTerminal:
    """A terminal of the pool, a relay's tunnel or a connection, as the service needs it."""

    def __init__(self, connection: NodeConnection):
        self._connection = connection
        self._exit_code: int | None = None

    async def receive(self) -> tuple[str, bytes] | None:
        answer = await self._connection.answer()
        if "piece" in answer:
            kind, data = answer["piece"]
            return kind, data
        self._exit_code = _value(answer)
        return None

    async def write(self, data: bytes) -> None:
        await self._connection.send({"input": data})

    async def resize(self, rows: int, columns: int) -> None:
        await self._connection.send({"resize": [rows, columns]})

    async def wait(self) -> int:
        """The exit code. Call it only after `receive` has returned None."""
        assert self._exit_code is not None
        return self._exit_code

"""The side of the process that owns a pool: executes what front ends ask for, each request once."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import hmac
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from ale_jax.sandbox.node import frames
from ale_jax.sandbox.pool.api import (
    OwnerLimits,
    PoolFull,
    SandboxGone,
    SandboxPool,
    StartRequest,
)
from ale_jax.sandbox.service.answers import Answers
from ale_jax.sandbox.service.terminal import TerminalProcess
from ale_jax.sandbox.spec import SandboxSpec

OUTCOMES, OUTCOMES_BYTES, OUTCOME_S = 20_000, 256 << 20, 600.0
HELLO_S = 10.0
STARTS = ("start", "start_many", "fork")
CONVERSATIONS = ("terminal", "relay", "connect")
AS_THEY_ARE = (  # methods of the pool whose arguments are plain data
    *("stop", "renew", "status", "statuses", "held", "usage", "call"),
    *("snapshot", "restore", "fork", "nodes", "events_after"),
)

log = logging.getLogger(__name__)

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter


@dataclasses.dataclass(frozen=True)
class NodeOutcome:
    """A request's result as a frame. again: nothing was done. started: ids of the sandboxes that it
    has started, if the pool has chosen them."""

    body: bytes
    again: bool = False
    started: Sequence[str] = ()


class NodeServer:
    """Serves `pool` to the front ends that know `token`. label: of where its sandboxes run.

    A connection carries one request at a time. A request with a key is executed once, whichever
    front end asks and however often, and goes on when the front end is gone: its outcome is kept
    for the one that asks next. `ending` is set when a front end asks for the end of the process.
    """

    def __init__(self, pool: SandboxPool, token: str, label: str):
        self.ending = asyncio.Event()
        self._pool, self._token, self._label = pool, token.encode(), label
        self._outcomes: Answers[NodeOutcome] = Answers(OUTCOMES, OUTCOMES_BYTES, OUTCOME_S)
        self._writers: set[Writer] = set()
        self._calls: Mapping[str, Callable[..., Awaitable[Any]]] = {
            **{name: getattr(pool, name) for name in AS_THEY_ARE},
            "start": lambda request, **terms: pool.start(request_from(request), **terms),
            "start_many": lambda request, *counts, **terms: pool.start_many(
                request_from(request), *counts, **terms
            ),
            "warm": lambda spec, count: pool.warm(SandboxSpec.from_json(spec), count),
            "cancel_request": self._cancel,
            "end": self._end,
        }

    async def serve(self, reader: Reader, writer: Writer) -> None:
        """Serves one connection, until the front end or the process ends."""
        self._writers.add(writer)
        try:
            await self._greet(reader, writer)
            while True:
                await self._answer(await frames.read(reader), reader, writer)
        except (EOFError, ConnectionError, TimeoutError):
            pass  # the front end is gone
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("a connection breaks the protocol: %r", error)
        finally:
            self._writers.discard(writer)
            writer.close()

    def close(self) -> None:
        """Closes all connections, which ends their tasks."""
        for writer in list(self._writers):
            writer.close()

    async def _greet(self, reader: Reader, writer: Writer) -> None:
        async with asyncio.timeout(HELLO_S):
            hello = await frames.read(reader)
        if not hmac.compare_digest(str(hello["token"]).encode(), self._token):
            raise ValueError("a wrong token")
        await _write(writer, {"label": self._label})

    async def _answer(self, request: dict[str, Any], reader: Reader, writer: Writer) -> None:
        what, arguments, named = request["do"], request["arguments"], request["named"]
        if what == "stream":
            await self._follow(self._pool.stream(*arguments, **named), reader, writer)
        elif what in CONVERSATIONS:
            conversation = getattr(self._pool, what)(*arguments)
            await self._converse(conversation, reader, writer)
        else:
            writer.write((await self._outcome(request, reader)).body)
            await writer.drain()

    async def _outcome(self, request: dict[str, Any], reader: Reader) -> NodeOutcome:
        if (key := request["key"]) is not None:
            what = [request[each] for each in ("do", "arguments", "named")]
            digest = hashlib.sha256(frames.pack(what)).digest()
            try:
                return await self._outcomes.once(tuple(key), digest, lambda: self._do(request))
            except frames.Refusal as refusal:  # the key was used for another request
                return _failed(refusal)
        if request["do"] not in STARTS:
            return await self._do(request)
        # Nobody would learn the ids of these sandboxes, so nobody would end them.
        return await _unless_gone(self._do(request), reader)

    async def _do(self, request: dict[str, Any]) -> NodeOutcome:
        try:
            act = self._calls[request["do"]]
            named = request["named"] | terms_from(request["terms"])
            value = await act(*request["arguments"], **named)
            return NodeOutcome(frames.pack({"value": value}), started=_started(request, value))
        except Exception as error:  # of any kind: the front end is told of it
            return _failed(error)

    async def _cancel(self, tenant: str, id: str) -> None:
        """Ends what a front end's request has asked for, and what it has started."""
        for key in self._outcomes.keys(tenant, f"{id}/"):
            outcome = await self._outcomes.cancel(key)
            for sandbox in outcome.started if outcome else ():
                with contextlib.suppress(SandboxGone):
                    await self._pool.stop(sandbox)

    async def _end(self) -> None:
        self.ending.set()

    async def _follow(
        self, pieces: AsyncGenerator[Any, None], reader: Reader, writer: Writer
    ) -> None:
        """Sends what `pieces` yields, until the front end closes the connection."""

        async def send() -> NodeOutcome:
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    await _write(writer, {"piece": piece})
            return NodeOutcome(frames.pack({"value": None}))

        try:
            outcome = await _unless_gone(send(), reader)
        except (EOFError, ConnectionError):
            raise
        except Exception as error:  # of any kind: the front end is told of it
            outcome = _failed(error)
        writer.write(outcome.body)
        await writer.drain()

    async def _converse(
        self, conversation: AbstractAsyncContextManager[Any], reader: Reader, writer: Writer
    ) -> None:
        """conversation: opens a `TerminalProcess` or what has its methods."""
        try:
            async with conversation as job:
                await _write(writer, {"piece": None})  # it is open
                shown = asyncio.ensure_future(_show(job, writer))
                typed = asyncio.ensure_future(_type(job, reader))
                try:
                    await asyncio.wait((shown, typed), return_when=asyncio.FIRST_COMPLETED)
                    if not shown.done():
                        await typed  # raises: the front end is gone, or broke the protocol
                    outcome = NodeOutcome(frames.pack({"value": await shown}))
                finally:
                    for task in (shown, typed):
                        task.cancel()
                    await asyncio.gather(shown, typed, return_exceptions=True)
        except (EOFError, ConnectionError):
            raise
        except Exception as error:  # of any kind: the front end is told of it
            outcome = _failed(error)
        writer.write(outcome.body)
        await writer.drain()
        raise EOFError  # input that is still on its way would look like the next request


def request_from(values: dict[str, Any]) -> StartRequest:
    """Errors: ValueError, TypeError."""
    return StartRequest(**(values | {"spec": SandboxSpec.from_json(values["spec"])}))


def terms_from(values: dict[str, Any]) -> dict[str, Any]:
    """Errors: KeyError, ValueError, TypeError."""
    limits = values.get("limits")
    return values | ({"limits": OwnerLimits.from_json(limits)} if limits is not None else {})


def _started(request: dict[str, Any], value: Any) -> Sequence[str]:
    if request["do"] not in STARTS:
        return ()
    first = request["arguments"][0]  # a request, or the id of what is forked
    if isinstance(first, dict) and first["id"]:
        return ()
    return [each.id for each in (value if isinstance(value, Sequence) else [value])]


def _failed(error: Exception) -> NodeOutcome:
    if not isinstance(error, tuple(frames.ERRORS.values())):
        log.error("a request failed", exc_info=error)
    return NodeOutcome(
        frames.pack({"error": frames.error_to_json(error)}), isinstance(error, PoolFull)
    )


async def _write(writer: Writer, value: Any) -> None:
    writer.write(frames.pack(value))
    await writer.drain()


async def _unless_gone(work: Awaitable[NodeOutcome], reader: Reader) -> NodeOutcome:
    """The outcome of `work`, which is cancelled when the front end closes the connection.

    Errors: those of `work`, and EOFError.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(reader.read(1))  # nothing is sent before the answer
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise EOFError
        return working.result()
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _show(job: TerminalProcess, writer: Writer) -> int:
    while (piece := await job.receive()) is not None:
        await _write(writer, {"piece": piece})
    return await job.wait()


async def _type(job: TerminalProcess, reader: Reader) -> None:
    while True:
        message = await frames.read(reader)
        if "resize" in message:
            await job.resize(*message["resize"])
        else:
            await job.write(message["input"])

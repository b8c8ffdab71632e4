"""Requests to a runner and their outcomes; what answers wrongly or not at all is a lost sandbox."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol, TypeVar

from ale_jax.sandbox.api import SandboxError, SandboxLost
from ale_jax.sandbox.link import Link
from ale_jax.sandbox.output import OutputSink
from ale_jax.sandbox.runner.usage import Usage

T = TypeVar("T")


class Machine(Protocol):
    """What a runtime starts: the isolated processes with the runner among them."""

    link: Link

    async def alive(self) -> bool: ...

    async def destroy(self) -> None:
        """Ends it and frees what it held, or leaves it to the reaper. May be called again."""

    def usage(self) -> Usage:
        """What the host has counted; nothing where the runner can read that itself."""

    def last_words(self) -> str:
        """What its standard error said, once it is destroyed."""


class Exchange:
    """To one machine."""

    def __init__(self, machine: Machine):
        self._machine = machine

    async def _ask(
        self,
        request: dict[str, Any],
        seconds: float,
        body: bytes = b"",
        sink: OutputSink | None = None,
    ) -> dict[str, Any]:
        """As `_exchange`, for requests whose failure is the sandbox's. Errors: SandboxError."""
        reply = await self._exchange(request, seconds, body, sink)
        if "error" in reply:
            raise SandboxError(f"sandbox cannot {request['do']}: {reply['error']}")
        return reply

    async def _exchange(
        self,
        request: dict[str, Any],
        seconds: float,
        body: bytes = b"",
        sink: OutputSink | None = None,
    ) -> dict[str, Any]:
        async with self._bounded(request["do"], seconds):
            return await _converse(self._machine.link, request, body, sink or OutputSink(0))

    @contextlib.asynccontextmanager
    async def _bounded(self, what: str, seconds: float) -> AsyncIterator[None]:
        """Silence and nonsense mean that the sandbox is lost."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise await self._lost(f"no answer to {what!r} within {seconds:g} s") from None
        except SandboxLost as error:
            raise await self._lost(str(error)) from error

    async def _made(self, make: Callable[[], T]) -> T:
        """A result out of a reply, which must hold what it should."""
        try:
            return make()
        except (KeyError, TypeError, ValueError) as error:
            raise await self._lost(f"malformed reply: {error!r:.200}") from error

    async def _lost(self, reason: str) -> SandboxLost:
        """A machine that broke the protocol is not used again, even if it still breathes."""
        self._machine.link.fail(reason)
        await self._machine.destroy()
        words = self._machine.last_words().strip()
        return SandboxLost(f"{reason}{': ' + words if words else ''}")


async def _converse(
    link: Link, request: dict[str, Any], body: bytes, sink: OutputSink
) -> dict[str, Any]:
    stream = link.open(request, body=bool(body))
    try:
        if body:
            await stream.send(body, even_if_ended=False)
            stream.end()
        while (piece := await stream.receive()) is not None:
            sink.take(piece[1])
        return await stream.outcome()
    except asyncio.CancelledError:
        stream.abandon()
        raise

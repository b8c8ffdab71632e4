"""One connection of a sandbox's through the proxy: its two ends, and its clock."""

from __future__ import annotations

import asyncio
import contextlib

from ale_jax.sandbox.egress.hello import UNRECOGNIZED_NAME
from ale_jax.sandbox.egress.hosts import Authority
from ale_jax.sandbox.egress.limits import Limits
from ale_jax.sandbox.egress.refusal import Refusal
from ale_jax.sandbox.egress.streams import Incoming, Reader, Writer


class Connection:
    """authority: where it leads, once that is asked for. answered: a byte was sent back.

    deadline: entered around all that the connection does; TimeoutError ends it. was_cut: before
    its time, and what came of it otherwise is of no interest; cut_for: what is said then, if so.
    """

    def __init__(self, reader: Reader, writer: Writer, limits: Limits):
        self.incoming = Incoming(reader)
        self.authority: Authority | None = None
        self.answered = False
        self.was_cut = False
        self.cut_for: Refusal | None = None
        self.deadline = asyncio.timeout(None)
        self._lingers = False
        self._writer = writer
        self._upstream: asyncio.StreamWriter | None = None
        self._limits = limits

    def leads_through(self, upstream: asyncio.StreamWriter) -> None:
        self._upstream = upstream
        self.touch()

    async def send(self, data: bytes) -> None:
        """To the sandbox. Errors: OSError."""
        self.answered = True
        self._writer.write(data)
        await self._writer.drain()
        self.touch()

    async def send_on(self, data: bytes) -> None:
        """To where it leads. Errors: OSError."""
        self._upstream.write(data)
        await self._upstream.drain()
        self.touch()

    def touch(self) -> None:
        """Something happened: the idle time begins anew."""
        if not (self._lingers or self.was_cut):
            self._end_in(self._limits.idle_seconds)

    def linger(self) -> None:
        """The sandbox sends no more. Its client may be gone, and its answer without a reader."""
        if not self.was_cut:
            self._lingers = True
            self._end_in(self._limits.linger_seconds)

    def cut(self, refusal: Refusal | None = None) -> None:
        """Not a byte more leaves; what is still under way is ended."""
        self.was_cut, self.cut_for = True, refusal
        self._abort()
        self._end_in(0.0)

    async def refuse(self, refusal: Refusal) -> None:
        """Says why, if that can still be said and somebody listens."""
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
        if not self.deadline.expired():  # which those that are to end now may not have been told
            self.deadline.reschedule(asyncio.get_running_loop().time() + seconds)

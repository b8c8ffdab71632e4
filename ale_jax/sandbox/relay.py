"""Leads connections that are made inside a sandbox to one address outside, and nowhere else: from
this process, or through a tunnel from the process at its far end.

The frames of a tunnel are those of `runner/wire.py`, as one stream of bytes each way over whatever
lies between its ends. The sandbox's end opens a stream for each connection; the far end dials.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Protocol

from ale_jax.sandbox.api import SandboxLost
from ale_jax.sandbox.link import Link, Stream
from ale_jax.sandbox.runner import wire

CONNECT_S = 10.0
# Of one port, and of one tunnel, in which 4 MB may be on their way in each direction.
CONNECTIONS = 64  # at a time; further ones wait
WINDOW = 1 << 16  # bytes of a connection in each direction
# Of the frames that wait for an end that does not read. The windows bound only the data in them.
MAX_LEAVING = 2 * CONNECTIONS * WINDOW

Serve = Callable[[Stream], Awaitable[None]]


class Carried(Protocol):
    """An end of a tunnel, or what leads to it, for the one who carries bytes to the other end."""

    async def receive(self) -> tuple[str, bytes]: ...

    async def write(self, data: bytes) -> None: ...


def check_port(port: int) -> None:
    """Errors: ValueError if there is no such port."""
    if not 0 < port < 1 << 16:
        raise ValueError(f"port {port} must be from 1 to 65535")


def relay_to(host: str, port: int) -> Serve:
    """Serves each connection by joining it with one to host:port. If there is none to be had, the
    connection inside is closed."""

    async def serve(stream: Stream) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError):
            return
        outward = asyncio.create_task(_outward(stream, writer))
        try:
            while data := await reader.read(wire.CHUNK):
                await stream.send(data)
        except OSError:
            pass  # the far side is gone, which the inside sees by the end of its connection
        finally:
            writer.close()
            await _cancelled(outward)

    return serve


async def _outward(stream: Stream, writer: asyncio.StreamWriter) -> None:
    while (received := await stream.receive()) is not None:
        _, data = received
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def _cancelled(task: asyncio.Task) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, OSError, SandboxLost):
        await task


class Door:
    """Serves connections, each in a task of its own, until it is closed. What programs inside can
    reach, they reach through doors, so that no sandbox takes all the connections that the outside
    can serve."""

    def __init__(self, serve: Serve):
        self._serve = serve
        self._room = asyncio.Semaphore(CONNECTIONS)
        self._tasks: set[asyncio.Task] = set()

    def enter(self, stream: Stream) -> None:
        task = asyncio.get_running_loop().create_task(self._attend(stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Cuts the connections."""
        for task in self._tasks:
            task.cancel()

    async def _attend(self, stream: Stream) -> None:
        try:
            async with self._room:
                await self._serve(stream)
        except SandboxLost:
            pass  # the sandbox's user gets this error from its own calls
        finally:
            stream.end()


async def carry(one: Carried, other: Carried) -> None:
    """Carries bytes both ways between two ends, until one of them raises, which is raised here."""
    ways = [asyncio.create_task(_carry_from(*each)) for each in ((one, other), (other, one))]
    try:
        done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in done:
            way.result()
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _carry_from(source: Carried, target: Carried) -> None:
    while True:
        _, data = await source.receive()
        await target.write(data)


class _Leaving:
    """The transport of a link whose bytes somebody else carries.

    fail: called with the reason if more than MAX_LEAVING bytes wait here.
    """

    def __init__(self, fail: Callable[[str], None]):
        self._data, self._changed = bytearray(), asyncio.Event()
        self._fail, self._is_over = fail, False

    def write(self, data: bytes) -> None:
        self._data += data
        self._changed.set()
        if len(self._data) > MAX_LEAVING:
            self._fail(f"more than {MAX_LEAVING} bytes wait for the other end, which must read")

    def is_closing(self) -> bool:
        return self._is_over

    def abort(self) -> None:
        self._is_over = True
        self._data.clear()
        self._changed.set()

    async def take(self) -> bytes:
        """The next bytes; b"" once the link has failed."""
        while not (self._data or self._is_over):
            self._changed.clear()
            await self._changed.wait()
        if self._is_over:
            return b""
        piece = bytes(self._data[: wire.CHUNK])
        del self._data[: wire.CHUNK]
        return piece


class _End:
    """One end of a tunnel, between its streams and whoever carries bytes to the other end. Carriers
    use it as they use a terminal."""

    def __init__(self, first: int):
        self._link = Link(first, WINDOW)
        self._leaving = _Leaving(self._link.fail)
        self._link.connection_made(self._leaving)
        self._reason: Exception | None = None

    async def receive(self) -> tuple[str, bytes]:
        """The next bytes for the other end.

        Errors: that of `fail`; ValueError if the other end breaks the protocol.
        """
        if piece := await self._leaving.take():
            return "frames", piece
        self._check()
        raise AssertionError("the link is over without a reason")

    async def write(self, data: bytes) -> None:
        """Takes bytes from the other end. Never waits: what is not read yet is bounded.

        Errors: as of `receive`.
        """
        self._link.data_received(data)
        self._check()  # whoever carries may not come to `receive`, if the other end does not read

    def _check(self) -> None:
        if self._reason is not None:
            raise self._reason
        try:
            self._link.check()
        except SandboxLost as error:  # which is no loss of the sandbox
            raise ValueError(f"relay: {error}") from error

    def fail(self, reason: Exception) -> None:
        """Ends the tunnel; `receive` raises the reason."""
        self._reason = reason
        self._link.fail(str(reason))

    def close(self) -> None:
        self.fail(SandboxLost("the relay is closed"))


class Tunnel(_End):
    """The sandbox's end."""

    def __init__(self):
        super().__init__(first=1)

    async def serve(self, stream: Stream) -> None:
        """Joins a connection with a stream to the far end, until that one ends."""
        far = self._link.open({}, body=True)
        outward = asyncio.create_task(_copy(stream, far))
        try:
            await _copy(far, stream)
        finally:
            far.abandon()
            await _cancelled(outward)


async def _copy(source: Stream, target: Stream) -> None:
    while (received := await source.receive()) is not None:
        _, data = received
        await target.send(data)
    target.end()


class Dialer(_End):
    """The far end, which serves each connection (`relay_to`)."""

    def __init__(self, serve: Serve):
        super().__init__(first=2)
        self._door = Door(serve)
        self._link.accept = lambda stream, _: self._door.enter(stream)

    def close(self) -> None:
        super().close()
        self._door.close()

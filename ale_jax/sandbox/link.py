"""One end of a connection with many streams (see `runner/wire.py`): the host's end of that to a
runner, or either end of a relay's tunnel.

The far end is not trusted: a violation of the protocol or of a limit ends the connection.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

from ale_jax.sandbox.api import SandboxLost
from ale_jax.sandbox.runner import wire

CREDENTIALS = "iII"  # pid, uid and gid of a socket's peer (unix(7))
# Credit goes back once this part of the window is taken. With credit for each frame, a far end that
# sends single bytes and never reads would have 13 bytes wait for each of them.
CREDIT_PARTS = 4
# Bytes that may wait for a runner that does not read. One that keeps the protocol needs half of it
# for its connections: it opens no more of them before it has read the ends of others, and a window
# bounds the data of each. The other half is for requests.
MAX_WAITING = 2 * wire.MAX_STREAMS * wire.WINDOW
Accept = Callable[["Stream", dict[str, Any]], None]


class Stream:
    """A request with its reply, or a connection that was opened inside the sandbox."""

    def __init__(self, link: Link, number: int, body: bool = True):
        self.number = number
        self._link = link
        self._room = link.window  # bytes that may be sent before the next credit
        self._held = 0  # bytes from the far end that are not received yet
        self._taken = 0  # bytes that were received but not credited yet
        self._inbox: deque[tuple[int, bytes]] = deque()
        self._outcome: dict[str, Any] | None = None
        self._over_here, self._abandoned = not body, False
        self._changed = asyncio.Event()

    async def receive(self) -> tuple[int, bytes] | None:
        """The next piece of data and its kind (wire.DATA or wire.ERROR); None at the end.

        Errors: SandboxLost.
        """
        while not self._inbox:
            if self._outcome is not None:
                return None
            await self._change()
        kind, data = self._inbox.popleft()
        self._held -= len(data)
        self._credit(len(data))
        return kind, data

    async def outcome(self) -> dict[str, Any]:
        """The outcome with which the runner ended the stream. Drops data not yet received."""
        while await self.receive() is not None:
            pass
        return self._outcome

    async def send(self, data: bytes, even_if_ended: bool = True) -> None:
        """Sends data, and waits while the window is full.

        even_if_ended: keep sending after the runner has ended its side, as for a connection. For a
        request, that end means that the request is finished, and the rest is dropped.
        """
        view = memoryview(data)
        while view and (even_if_ended or self._outcome is None):
            if self._room <= 0:
                await self._change()
                continue
            piece = view[: min(self._room, wire.CHUNK)]
            self._room -= len(piece)
            self._link.post(wire.frame(wire.DATA, self.number, bytes(piece)))
            view = view[len(piece) :]

    def end(self) -> None:
        """Ends this side: no more data is sent. May be called more than once."""
        if not self._over_here:
            self._over_here = True
            self._link.post(wire.json_frame(wire.END, self.number, {}))
            self._forget_if_over()

    def cancel(self) -> None:
        """Has the runner end what it does for this request, unless it is over, and abandons it."""
        if self._outcome is None:
            self._link.post(wire.frame(wire.CANCEL, self.number))
        self.abandon()

    def abandon(self) -> None:
        """Ends this side, and drops data that still arrives."""
        self.end()
        self._abandoned = True
        self._drop()

    def take(self, kind: int, payload: bytes) -> None:
        """Handles a frame from the far end. ValueError if it breaks the protocol."""
        if kind == wire.CREDIT:
            self._room += wire.credited(payload)
            if self._room > self._link.window:  # it would fill our memory by not reading
                raise ValueError("credit for more than was sent")
        elif kind == wire.END:
            self._outcome = _object(payload)
            self._forget_if_over()
        elif self._outcome is not None:
            raise ValueError("data after the end")
        elif self._held + self._taken + len(payload) > self._link.window:
            raise ValueError("data beyond the window")
        elif not payload:  # the window would not bound how many of them wait
            raise ValueError("data without a byte")
        else:
            self._held += len(payload)
            self._inbox.append((kind, payload))
            if self._abandoned:
                self._drop()
        self._changed.set()

    def _drop(self) -> None:
        self._inbox.clear()
        dropped, self._held = self._held, 0
        self._credit(dropped)

    def _credit(self, count: int) -> None:
        self._taken += count
        if self._outcome is None and self._taken >= self._link.window // CREDIT_PARTS:
            self._link.post(wire.credit_frame(self.number, self._taken))
            self._taken = 0

    def wake(self) -> None:
        self._changed.set()

    async def _change(self) -> None:
        self._link.check()
        self._changed.clear()
        await self._changed.wait()
        if not self._inbox and self._outcome is None:
            self._link.check()

    def _forget_if_over(self) -> None:
        if self._over_here and self._outcome is not None:
            self._link.forget(self.number)


class Link(asyncio.Protocol):
    """All streams over one socket, for one event loop.

    accept: called with each stream that the far end opens and its request. If None, it may not
        open streams.
    window: bytes of a stream that may be on their way in each direction, the same at both ends.
    """

    def __init__(self, first: int = 1, window: int = wire.WINDOW):
        """first: number of the first stream that this end opens: 1, or 2 if the far end has 1."""
        self.accept: Accept | None = None
        self.stderr = bytearray()
        self.window = window
        self._streams: dict[int, Stream] = {}
        self._next, self._parity = first, first % 2
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._waiting, self._is_paused = bytearray(), False  # frames while the transport is full
        self._failure: SandboxLost | None = None
        self._failed = asyncio.Event()
        self._greeted: asyncio.Future[dict] = asyncio.get_running_loop().create_future()
        self._pinged: asyncio.Future[None] | None = None

    async def greeting(self) -> dict[str, Any]:
        """Waits until the runner serves requests. Errors: SandboxLost."""
        return await self._greeted

    def open(self, request: dict[str, Any], body: bool = False) -> Stream:
        """Sends a request. body: data follows; `Stream.end` must be called. Errors: SandboxLost."""
        self.check()
        stream = self._streams[self._next] = Stream(self, self._next, body)
        self._next += 2
        self.post(wire.json_frame(wire.OPEN, stream.number, request | {"body": body}))
        return stream

    def ping(self) -> asyncio.Future[None]:
        """Is done when the runner answers, which costs it less than any request. One at a time.

        Errors: SandboxLost, at once or in the future.
        """
        self.check()
        assert self._pinged is None, "the last ping was not answered"
        self._pinged = asyncio.get_running_loop().create_future()
        self.post(wire.frame(wire.PING, 0))
        return self._pinged

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def until_lost(self) -> None:
        """Waits for the end of the connection, which it raises (SandboxLost)."""
        await self._failed.wait()
        self.check()

    def post(self, frame: bytes) -> None:
        """Queues a frame. A far end that lets more than MAX_WAITING bytes wait is given up: the
        windows bound only data, but not ends, credit and requests."""
        if self._transport is None or self._transport.is_closing():
            return
        if not self._is_paused:
            self._transport.write(frame)
            return
        self._waiting += frame
        if len(self._waiting) > MAX_WAITING:
            self.fail(f"the runner does not read: more than {MAX_WAITING} bytes wait for it")

    def forget(self, number: int) -> None:
        self._streams.pop(number, None)

    def fail(self, reason: str) -> None:
        """Ends the connection; pending and later calls raise SandboxLost."""
        if self._failure is None:
            self._failure = SandboxLost(reason)
            self._failed.set()
            self._waiting.clear()
            if self._transport is not None:
                self._transport.abort()
            if not self._greeted.done():
                self._greeted.set_exception(self._failure)
                self._greeted.exception()  # marks it as retrieved, in case nothing awaits it
            if self._pinged is not None and not self._pinged.done():
                self._pinged.set_exception(self._failure)
                self._pinged.exception()
            for stream in list(self._streams.values()):
                stream.wake()

    # Callbacks of asyncio.Protocol.

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._waiting:
            waited, self._waiting = self._waiting, bytearray()
            self._transport.write(waited)

    def connection_lost(self, error: Exception | None) -> None:
        self.fail(f"connection broken: {error}" if error else "the runner is gone")

    def eof_received(self) -> None:
        self.fail("the runner is gone")

    def data_received(self, data: bytes) -> None:
        if self._failure is not None:  # a far end that goes on sending would fill the buffer
            return
        self._buffer += data
        try:
            self._take_frames()
        except (ValueError, RecursionError, struct.error) as error:
            self.fail(f"the runner broke the protocol: {error}")

    def _take_frames(self) -> None:
        start = 0
        while len(self._buffer) - start >= wire.HEAD.size:
            size, number, kind = wire.HEAD.unpack_from(self._buffer, start)
            if size > (wire.CHUNK if kind in (wire.DATA, wire.ERROR) else wire.MAX_FRAME):
                raise ValueError(f"a frame of {size} bytes")
            begin = start + wire.HEAD.size
            if len(self._buffer) < begin + size:
                break
            start = begin + size
            self._take(number, kind, bytes(self._buffer[begin:start]))
        del self._buffer[:start]

    def _take(self, number: int, kind: int, payload: bytes) -> None:
        if kind not in range(wire.PING + 1):
            raise ValueError(f"a frame of kind {kind}")
        if number in self._streams:
            self._streams[number].take(kind, payload)
        elif number == 0 and kind == wire.END and not self._greeted.done():
            self._greeted.set_result(_object(payload))
        elif kind == wire.PING and self._pinged is not None:
            pinged, self._pinged = self._pinged, None
            if not pinged.done():  # its heartbeat has stopped
                pinged.set_result(None)
        elif kind == wire.OPEN:
            self._accept_stream(number, _object(payload))
        elif kind != wire.CREDIT:  # credit for the last data may arrive late
            raise ValueError(f"stream {number} is not open")

    def _accept_stream(self, number: int, request: dict[str, Any]) -> None:
        theirs = sum(1 for open_number in self._streams if open_number % 2 != self._parity)
        is_ours = number % 2 == self._parity
        if self.accept is None or is_ours or theirs >= wire.MAX_STREAMS:
            raise ValueError(f"stream {number} must not be opened")
        stream = self._streams[number] = Stream(self, number)
        self.accept(stream, request)


class DockerLink(Link):
    """A link through the Docker daemon, which wraps the container's output in its own frames.

    The runner may move the link to a direct socket. Its standard error still comes through the
    daemon then.

    runner_pid: of that runner, as this process sees it; 0 if it does not. gates: descriptors that
    the runner gets over the direct socket, and that are closed then.
    """

    KEPT_STDERR = 2000
    _HEAD, _STDOUT = 8, 1

    def __init__(self):
        super().__init__()
        self.gates: list[int] = []
        self._raw = bytearray()
        self.runner_pid = 0
        self._attached: asyncio.Transport | None = None

    def direct(self) -> asyncio.Protocol:
        """The protocol of a connection that takes over this link."""
        return _Direct(self)

    def take_over(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        peer = transport.get_extra_info("socket")
        size = struct.calcsize(CREDENTIALS)
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        self.runner_pid, *_ = struct.unpack(CREDENTIALS, credentials)
        self.resume_writing()  # the other connection may have been full

    def unwrapped(self, data: bytes) -> None:
        super().data_received(data)

    def take_gates(self) -> list[int]:
        """The gates, which are the caller's to close then."""
        gates, self.gates = self.gates, []
        return gates

    def fail(self, reason: str) -> None:
        super().fail(reason)
        for gate in self.take_gates():
            os.close(gate)
        if self._attached is not None:
            self._attached.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._attached = transport

    def data_received(self, data: bytes) -> None:
        self._raw += data
        start = 0
        while len(self._raw) - start >= self._HEAD:
            stream = self._raw[start]
            size = int.from_bytes(self._raw[start + 4 : start + 8], "big")
            end = start + self._HEAD + size
            if len(self._raw) < end:
                break
            content = bytes(self._raw[start + self._HEAD : end])
            if stream == self._STDOUT:
                self.unwrapped(content)
            else:
                self.stderr += content[: self.KEPT_STDERR - len(self.stderr)]
            start = end
        del self._raw[:start]


class _Direct(asyncio.Protocol):
    """A connection through which a runner has taken over its link."""

    def __init__(self, link: DockerLink):
        self._link = link
        self.connection_made = self._send_gates
        self.data_received = link.unwrapped
        self.pause_writing, self.resume_writing = link.pause_writing, link.resume_writing
        self.connection_lost = link.connection_lost
        self.eof_received = link.eof_received

    def _send_gates(self, transport: asyncio.Transport) -> None:
        gates = self._link.take_gates()
        with socket.fromfd(
            transport.get_extra_info("socket").fileno(), socket.AF_UNIX, socket.SOCK_STREAM
        ) as connection:
            socket.send_fds(connection, [wire.GATES], gates)
        for gate in gates:
            os.close(gate)
        self._link.take_over(transport)


def _object(payload: bytes) -> dict[str, Any]:
    content = json.loads(payload)
    if not isinstance(content, dict):
        raise ValueError(f"not an object: {content!r:.80}")
    return content

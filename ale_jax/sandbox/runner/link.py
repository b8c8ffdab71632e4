"""The runner's end of the connection to the host: streams over standard input and output, and the
connections of a sandbox without a network, each of which is such a stream."""

import contextlib
import json
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable

from . import wire
from .loop import READ, WRITE, Event, Loop
from .wire import CHUNK


class Stream:
    """One request of the host's, or one connection out of the sandbox."""

    def __init__(self, link: "Link", number: int, body: bool = True):
        self.number = number
        self._link = link
        self._room = wire.WINDOW
        self._inbox: deque[bytes] = deque()
        self._received, self._credited = Event(link.loop), Event(link.loop)
        self._over_there, self._over_here, self._receives = not body, False, True

    async def receive(self) -> bytes:
        """What the host sent next; nothing when it sends no more."""
        while not self._inbox:
            if self._over_there:
                return b""
            self._received.clear()
            await self._received.wait()
        data = self._inbox.popleft()
        self._link.post(wire.credit_frame(self.number, len(data)))
        return data

    async def receive_all(self) -> bytes:
        parts = []
        while part := await self.receive():
            parts.append(part)
        return b"".join(parts)

    async def send(self, data: bytes, kind: int = wire.DATA) -> None:
        view = memoryview(data)
        while view:
            while self._room <= 0:
                self._credited.clear()
                await self._credited.wait()
            piece = view[: min(self._room, wire.CHUNK)]
            self._room -= len(piece)
            self._link.post(wire.frame(kind, self.number, bytes(piece)))
            view = view[len(piece) :]

    def end(self, outcome: dict, receives: bool = False) -> None:
        """The first end is the one that counts. receives: what still comes is wanted."""
        if self._over_here:
            return
        self._over_here, self._receives = True, receives
        self._link.post(wire.json_frame(wire.END, self.number, outcome))
        self._forget_if_over()

    def take(self, kind: int, payload: bytes) -> None:
        """A frame of the host's."""
        if kind == wire.CREDIT:
            self._room += wire.credited(payload)
            self._credited.set()
            return
        if kind == wire.END:
            self._over_there = True
            self._forget_if_over()
        elif self._receives:
            self._inbox.append(payload)
        self._received.set()

    def _forget_if_over(self) -> None:
        if self._over_here and self._over_there:
            self._link.forget(self.number)


class Link:
    """All streams. accept: called with each stream that the host opens, and its request."""

    def __init__(self, loop: Loop, accept: Callable[[Stream, dict], Awaitable[None]]):
        self.loop = loop
        self._accept = accept
        self._streams: dict[int, Stream] = {}
        self._next = 2
        self._outgoing = bytearray()
        self._writing = False
        for fd in (0, 1):
            os.set_blocking(fd, False)
        loop.before_wait = self._flush
        loop.spawn(self._read())

    def open(self, request: dict) -> Stream:
        stream = self._streams[self._next] = Stream(self, self._next)
        self._next += 2
        self.post(wire.json_frame(wire.OPEN, stream.number, request))
        return stream

    def greet(self) -> None:
        """Tells the host that requests are served: stream 0, which is nobody's, ends."""
        self.post(wire.json_frame(wire.END, 0, {"protocol": wire.PROTOCOL}))

    def post(self, frame: bytes) -> None:
        """Sends a frame before the next wait. Its size is bounded by the streams' windows."""
        self._outgoing += frame

    def forget(self, number: int) -> None:
        del self._streams[number]

    def _flush(self) -> None:
        if self._outgoing and not self._writing:
            self._write_some()
            if self._outgoing:
                self._writing = True
                self.loop.spawn(self._write_rest())

    def _write_some(self) -> None:
        try:
            del self._outgoing[: os.write(1, self._outgoing)]
        except BlockingIOError:
            pass
        except OSError:  # the owner is gone
            os._exit(0)

    async def _write_rest(self) -> None:
        while self._outgoing:
            await self.loop.ready(1, WRITE)
            self._write_some()
        self._writing = False

    async def _read(self) -> None:
        buffer = bytearray()
        while True:
            await self.loop.ready(0, READ)
            try:
                part = os.read(0, wire.CHUNK)
            except BlockingIOError:
                continue
            if not part:
                os._exit(0)  # the owner closed its end
            buffer += part
            while len(buffer) >= wire.HEAD.size:
                size, number, kind = wire.HEAD.unpack_from(buffer)
                end = wire.HEAD.size + size
                if len(buffer) < end:
                    break
                self._dispatch(number, kind, bytes(buffer[wire.HEAD.size : end]))
                del buffer[:end]

    def _dispatch(self, number: int, kind: int, payload: bytes) -> None:
        if kind == wire.OPEN:
            request = json.loads(payload)
            stream = self._streams[number] = Stream(self, number, request.get("body", True))
            self.loop.spawn(self._accept(stream, request))
        elif number in self._streams:  # else it is over, and the host does not know yet
            self._streams[number].take(kind, payload)


LOOPBACK = b"127.0.0.1"  # no text: to look that up, python needs codecs that are not packed
BACKLOG = 64


class Relay:
    """Listens on ports of the sandbox's own loopback, and calls at them."""

    def __init__(self, loop: Loop, link: Link):
        self._loop, self._link = loop, link

    def listen(self, port: int) -> None:
        """From now on, each connection to `port` inside is a stream that asks to be accepted."""
        listener = socket.create_server((LOOPBACK, port), backlog=BACKLOG)
        listener.setblocking(False)
        self._loop.spawn(self._accept_forever(listener, port))

    async def connect(self, port: int, stream: Stream) -> dict:
        """Joins `stream` with the service that listens on `port` inside, until one side ends."""
        sock = socket.create_connection((LOOPBACK, port), timeout=1.0)
        await self._join(sock, stream)
        return {}

    async def _accept_forever(self, listener: socket.socket, port: int) -> None:
        while True:
            await self._loop.ready(listener.fileno(), READ)
            with contextlib.suppress(OSError):  # it went away while it waited
                sock, _ = listener.accept()
                stream = self._link.open({"do": "accept", "port": port})
                self._loop.spawn(self._serve(sock, stream))

    async def _serve(self, sock: socket.socket, stream: Stream) -> None:
        await self._join(sock, stream)
        stream.end({})

    async def _join(self, sock: socket.socket, stream: Stream) -> None:
        """Either side may say that it sends no more; it is over when the host has said so."""
        with sock:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            outward = self._loop.spawn(self._outward(sock, stream))
            await self._inward(sock, stream)
            self._loop.cancel(outward)

    async def _outward(self, sock: socket.socket, stream: Stream) -> None:
        while True:
            try:
                chunk = os.read(sock.fileno(), CHUNK)
            except BlockingIOError:
                await self._loop.ready(sock.fileno(), READ)
                continue
            except OSError:
                chunk = b""
            if not chunk:
                stream.end({}, receives=True)
                return
            await stream.send(chunk)

    async def _inward(self, sock: socket.socket, stream: Stream) -> None:
        while data := await stream.receive():
            unsent = memoryview(data)
            while unsent:
                try:
                    unsent = unsent[os.write(sock.fileno(), unsent) :]
                except BlockingIOError:
                    await self._loop.ready(sock.fileno(), WRITE)
                except OSError:  # nobody reads; the host will end the stream, told by our end
                    break

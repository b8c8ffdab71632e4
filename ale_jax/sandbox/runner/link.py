"""The runner's end of the connection to the host: streams over standard input and output, and the
relay that turns TCP connections inside the sandbox into such streams."""

import contextlib
import json
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable

from . import wire
from .loop import READ, WRITE, Event, Loop, Task
from .wire import CHUNK


class RunnerStream:
    """One request from the host, or one connection that is opened inside the sandbox.

    when_cancelled: called when the host no longer waits for the outcome, unless there is one.
    """

    def __init__(self, link: "RunnerLink", number: int, body: bool = True):
        self.number = number
        self._link = link
        self._room = wire.WINDOW
        self._inbox: deque[bytes] = deque()
        self._received, self._credited = Event(link.loop), Event(link.loop)
        self._over_there, self._over_here, self._receives = not body, False, True
        self._is_cancelled = False
        self.when_cancelled: Callable[[], object] = lambda: None

    async def receive(self) -> bytes:
        """The next data from the host; b"" when the host has ended its side."""
        while not self._inbox:
            if self._over_there or self._is_cancelled:
                return b""
            self._received.clear()
            await self._received.wait()
        data = self._inbox.popleft()
        self._link.post(wire.credit_frame(self.number, len(data)))
        return data

    async def receive_all(self) -> bytes:
        """RuntimeError if the host has cancelled the request, of which this may be a part then."""
        parts = []
        while part := await self.receive():
            parts.append(part)
        if self._is_cancelled:
            raise RuntimeError("the host has cancelled it")
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
        """Ends this side; only the first call counts. receives: keep data that still arrives."""
        if self._over_here:
            return
        self._over_here, self._receives = True, receives
        self._link.post(wire.json_frame(wire.END, self.number, outcome))
        self._forget_if_over()

    def take(self, kind: int, payload: bytes) -> None:
        """Handles a frame from the host."""
        if kind == wire.CREDIT:
            self._room += wire.credited(payload)
            self._credited.set()
            return
        if kind == wire.CANCEL:
            self._inbox.clear()
            self._is_cancelled = True
            if not self._over_here:
                self.when_cancelled()
        elif kind == wire.END:
            self._over_there = True
            self._forget_if_over()
        elif self._receives:
            self._inbox.append(payload)
        self._received.set()

    def _forget_if_over(self) -> None:
        if self._over_here and self._over_there:
            self._link.forget(self.number)


class RunnerLink:
    """All streams. accept: called with each stream that the host opens and its request."""

    def __init__(self, loop: Loop, accept: Callable[[RunnerStream, dict], Awaitable[None]]):
        self.loop = loop
        self._accept = accept
        self._streams: dict[int, RunnerStream] = {}
        self._next = 2
        self._open = 0  # streams that this side opened and that are not over on both sides
        self._closed = Event(loop)
        self._outgoing = bytearray()
        self._writing = False
        for fd in (0, 1):
            os.set_blocking(fd, False)
        loop.before_wait = self._flush
        loop.spawn(self._read())

    async def room(self) -> None:
        """Waits until `open` may be called. The host takes a stream too many for an attack."""
        while self._open >= wire.MAX_STREAMS:
            self._closed.clear()
            await self._closed.wait()

    def open(self, request: dict) -> RunnerStream:
        self._open += 1
        stream = self._streams[self._next] = RunnerStream(self, self._next)
        self._next += 2
        self.post(wire.json_frame(wire.OPEN, stream.number, request))
        return stream

    def greet(self) -> None:
        """Tells the host that requests are served, by ending stream 0, which has no other use."""
        self.post(wire.json_frame(wire.END, 0, {"protocol": wire.PROTOCOL}))

    def post(self, frame: bytes) -> None:
        """Queues a frame, which is sent before the next wait. The windows bound the queue."""
        self._outgoing += frame

    def forget(self, number: int) -> None:
        del self._streams[number]
        if number % 2 == 0:
            self._open -= 1
            self._closed.set()

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
        except OSError:  # the host is gone
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
                os._exit(0)  # the host closed its end
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
            stream = self._streams[number] = RunnerStream(self, number, request.get("body", True))
            self.loop.spawn(self._accept(stream, request))
        elif kind == wire.PING:
            self.post(wire.frame(wire.PING, 0))
        elif number in self._streams:  # otherwise it is over, and the host does not know yet
            self._streams[number].take(kind, payload)


def use_socket(path: str) -> list[int]:
    """Replaces the standard streams by a socket; keeps them if it cannot be reached from here.
    Returns the descriptors that the host sends over it: the score and the groups of `Rights`."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
        except OSError:
            return []
        _, gates, _, _ = socket.recv_fds(connection, len(wire.GATES), wire.MAX_GATES)
        for gate in gates:  # received descriptors are inheritable, unlike opened ones
            os.set_inheritable(gate, False)
        for stream in (0, 1):
            os.dup2(connection.fileno(), stream)
    return gates


LOOPBACK = b"127.0.0.1"  # bytes: for a str, Python would need codecs that the toolkit lacks
BACKLOG = 64


class Relay:
    """Listens on ports of the sandbox's loopback, and connects to them."""

    def __init__(self, loop: Loop, link: RunnerLink):
        self._loop, self._link = loop, link
        self._listening: dict[int, tuple[socket.socket, Task]] = {}

    def listen(self, port: int) -> None:
        """Opens a stream to the host for each connection to `port` inside, from now on."""
        _check_port(port)
        listener = socket.create_server((LOOPBACK, port), backlog=BACKLOG)
        listener.setblocking(False)
        self._listening[port] = listener, self._loop.spawn(self._accept_forever(listener, port))

    def unlisten(self, port: int) -> None:
        """Ends `listen`, if it was called. Connections that are open stay open."""
        if port in self._listening:
            listener, accepting = self._listening.pop(port)
            self._loop.cancel(accepting)
            listener.close()

    def listen_again(self) -> None:
        """On the same ports of another network, into which this process has moved."""
        for port in [*self._listening]:
            self.unlisten(port)
            self.listen(port)

    async def connect(self, port: int, stream: RunnerStream) -> dict:
        """Joins `stream` with the program that listens on `port` inside, until that one ends. If
        the host ends its side before, it has no more to say, but may be answered."""
        _check_port(port)
        with socket.create_connection((LOOPBACK, port), timeout=1.0) as sock:
            outward = self._begin(sock, stream)
            stream.when_cancelled = lambda: _shut(sock, socket.SHUT_RDWR)
            await self._inward(sock, stream)
            _shut(sock, socket.SHUT_WR)
            await outward.over.wait()
        return {}

    async def _accept_forever(self, listener: socket.socket, port: int) -> None:
        while True:
            await self._loop.ready(listener.fileno(), READ)
            await self._link.room()  # meanwhile, the kernel lets further clients wait
            with contextlib.suppress(OSError):  # the client is gone already
                sock, _ = listener.accept()
                stream = self._link.open({"do": "accept", "port": port})
                self._loop.spawn(self._serve(sock, stream))

    async def _serve(self, sock: socket.socket, stream: RunnerStream) -> None:
        await self._join(sock, stream)
        stream.end({})

    async def _join(self, sock: socket.socket, stream: RunnerStream) -> None:
        """Relays both ways. Each side may end its direction; returns when the host has done so."""
        with sock:
            outward = self._begin(sock, stream)
            await self._inward(sock, stream)
            self._loop.cancel(outward)

    def _begin(self, sock: socket.socket, stream: RunnerStream) -> Task:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._loop.spawn(self._outward(sock, stream))

    async def _outward(self, sock: socket.socket, stream: RunnerStream) -> None:
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

    async def _inward(self, sock: socket.socket, stream: RunnerStream) -> None:
        while data := await stream.receive():
            unsent = memoryview(data)
            while unsent:
                try:
                    unsent = unsent[os.write(sock.fileno(), unsent) :]
                except BlockingIOError:
                    await self._loop.ready(sock.fileno(), WRITE)
                except OSError:  # the peer is gone; the host ends the stream once we end ours
                    break


def _shut(sock: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):  # the peer is gone
        sock.shutdown(how)


def _check_port(port: int) -> None:
    if not 0 < port < 1 << 16:
        raise ValueError(f"port {port} must be from 1 to 65535")

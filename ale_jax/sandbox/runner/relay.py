"""Connections in and out of a sandbox that has no network: each is a stream to the host."""

import contextlib
import os
import socket

from .link import Link, Stream
from .loop import READ, WRITE, Loop
from .wire import CHUNK

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

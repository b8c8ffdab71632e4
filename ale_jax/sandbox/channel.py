"""Frames over a socket to a runner (see `runner/wire.py`), with a deadline on every byte.

The far end is not believed: lengths are capped, and silence, hang-up and nonsense are SandboxLost.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import time

from ale_jax.sandbox.api import SandboxLost

CHUNK = 1 << 16
MAX_HEADER_BYTES = 1 << 16


class Channel:
    """One conversation. Not for several threads at a time."""

    def __init__(self, sock: socket.socket):
        self._sock = sock
        self._deadline = 0.0

    def request(
        self, header: dict, data: bytes = b"", *, seconds: float, max_bytes: int
    ) -> tuple[dict, bytes]:
        """Sends a request and returns its reply: (header, data). Errors: SandboxLost."""
        try:
            self.send(_request(header, data), seconds)
            return self.receive(max_bytes, seconds)
        except TimeoutError:
            raise SandboxLost(f"no answer to {header['do']!r} within {seconds:g} s") from None
        except OSError as error:
            raise SandboxLost(f"connection broken during {header['do']!r}: {error}") from error

    def send(self, message: bytes, seconds: float) -> None:
        if self._sock.fileno() < 0:
            raise SandboxLost("the sandbox is closed")
        deadline, unsent = time.monotonic() + seconds, memoryview(message)
        poller = select.poll()
        # Docker's daemon does not read on for a container that died, but hangs up its own half.
        poller.register(self._sock, select.POLLOUT | select.POLLRDHUP)
        while unsent:
            events = poller.poll(max(0, deadline - time.monotonic()) * 1000)
            if not events:
                raise TimeoutError
            if events[0][1] != select.POLLOUT:
                raise SandboxLost("the runner is gone")
            unsent = unsent[self._sock.send(unsent[:CHUNK], socket.MSG_DONTWAIT) :]

    def receive(self, max_bytes: int, seconds: float) -> tuple[dict, bytes]:
        self._deadline = time.monotonic() + seconds
        parts, room = [], max_bytes
        while frame := self._receive_frame(room):
            parts.append(frame)
            room -= len(frame)
        try:
            header = json.loads(self._receive_frame(MAX_HEADER_BYTES))
        except ValueError as error:
            raise SandboxLost(f"the runner's reply is not JSON: {error}") from error
        if not isinstance(header, dict):
            raise SandboxLost(f"the runner's reply is not an object: {header!r:.80}")
        return header, b"".join(parts)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the far end went first
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for an answer
        self._sock.close()

    def _receive_frame(self, max_bytes: int) -> bytes:
        (size,) = struct.unpack(">I", self._receive_exactly(4))
        if size > max_bytes:
            raise SandboxLost(f"the runner sent {size} bytes where {max_bytes} are allowed")
        return self._receive_exactly(size)

    def _receive_exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = self._receive_some(min(size, CHUNK))
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _receive_some(self, limit: int) -> bytes:
        """Returns 1 to `limit` bytes of what the runner wrote."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        part = self._sock.recv(limit)
        if not part:
            raise SandboxLost("the runner is gone")
        return part


def _request(header: dict, data: bytes) -> bytes:
    pieces = [data[i : i + CHUNK] for i in range(0, len(data), CHUNK)]
    frames = [json.dumps(header).encode(), *pieces, b""]
    return b"".join(struct.pack(">I", len(frame)) + frame for frame in frames)

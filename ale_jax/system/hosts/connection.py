"""Connections between the processes of a run: frames of JSON and arrays, and signs of life.

    frame = length of the header, length of the payload; the header, as JSON; the arrays' bytes

Nothing is unpickled. Each end sends a frame at least every HEARTBEAT_S, from a thread of its own,
so that an end which is stopped, or whose machine is gone, is told from one that computes.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

HEARTBEAT_S = 1.0
SILENCE_S = 15.0  # without any frame, the other end counts as dead
PIECE_BYTES = 1 << 20
MAX_HEADER_BYTES = 256 << 20  # a tokenizer's file is in a header
MAX_PAYLOAD_BYTES = 1 << 40
# Of the first frame, from whoever could connect.
HELLO_BYTES = 1 << 12
HELLO_S = 10.0
_LENGTHS = struct.Struct(">QQ")
_KINDS = "biuf"  # of numpy's types: numbers only

Frame = tuple[dict[str, Any], list[np.ndarray]]


class Gone(ConnectionError):
    """The other end is not there any more, or does not speak as it should."""


class Connection:
    """One end. `receive` is called by one thread, `send` by any."""

    def __init__(self, connected: socket.socket):
        self._socket = connected
        if connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.settimeout(SILENCE_S)
        self._sending = threading.Lock()
        self._closed = threading.Event()
        self.sent_bytes = 0
        threading.Thread(target=self._live, name="heartbeat", daemon=True).start()

    def send(self, header: dict[str, Any], arrays: Sequence[np.ndarray] = ()) -> None:
        """Errors: Gone."""
        described = header | {"arrays": [[array.dtype.str, array.shape] for array in arrays]}
        text = json.dumps(described, allow_nan=False).encode()
        payload = [np.ascontiguousarray(array).data.cast("B") for array in arrays if array.size]
        lengths = _LENGTHS.pack(len(text), sum(map(len, payload)))
        try:
            with self._sending:
                for part in (memoryview(lengths + text), *payload):
                    # In pieces, since the limit is for the other end's silence, not for a batch.
                    for start in range(0, len(part), PIECE_BYTES):
                        self._socket.sendall(part[start : start + PIECE_BYTES])
                    self.sent_bytes += len(part)
        except OSError as error:
            raise Gone(f"the connection ended ({error})") from error

    def receive_hello(self) -> dict[str, Any]:
        """Returns the first frame, from whoever has connected: a small header, soon. Errors:
        Gone."""
        timer = threading.Timer(HELLO_S, self._hang_up)
        timer.start()
        try:
            return self._next(HELLO_BYTES, 0)[0]
        finally:
            timer.cancel()

    def receive(self) -> Frame:
        """Returns the next frame that is no mere sign of life. Errors: Gone."""
        return self._next(MAX_HEADER_BYTES, MAX_PAYLOAD_BYTES)

    def _next(self, max_header_bytes: int, max_payload_bytes: int) -> Frame:
        while True:
            try:
                header, arrays = self._receive(max_header_bytes, max_payload_bytes)
            except TimeoutError as error:
                raise Gone(f"nothing was heard for {SILENCE_S:g} s") from error
            except OSError as error:
                raise Gone(f"the connection ended ({error})") from error
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
                raise Gone(f"it sent what is no frame ({error!r:.200})") from error
            if header.get("kind") != "alive":
                return header, arrays

    def close(self) -> None:
        self._closed.set()
        self._socket.close()

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):  # the other end has done so
            self._socket.shutdown(socket.SHUT_RDWR)

    def _live(self) -> None:
        while not self._closed.wait(HEARTBEAT_S):
            try:
                self.send({"kind": "alive"})
            except Gone:  # the thread that receives notices it, too
                return

    def _receive(self, max_header_bytes: int, max_payload_bytes: int) -> Frame:
        header_bytes, payload_bytes = _LENGTHS.unpack(self._exactly(_LENGTHS.size))
        if header_bytes > max_header_bytes or payload_bytes > max_payload_bytes:
            raise ValueError(f"a frame of {header_bytes} and {payload_bytes} bytes")
        header = json.loads(bytes(self._exactly(header_bytes)))
        described = [(_numbers(dtype), tuple(shape)) for dtype, shape in header.pop("arrays")]
        if sum(dtype.itemsize * math.prod(shape) for dtype, shape in described) != payload_bytes:
            raise ValueError(f"{payload_bytes} bytes of arrays, unlike the header")
        arrays = [np.empty(shape, dtype) for dtype, shape in described]
        for array in arrays:
            if array.size:
                self._read_into(array.data.cast("B"))
        return header, arrays

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        self._read_into(memoryview(data))
        return data

    def _read_into(self, unfilled: memoryview) -> None:
        while unfilled:
            count = self._socket.recv_into(unfilled)
            if not count:
                raise ConnectionResetError("the other end closed it")
            unfilled = unfilled[count:]


def _numbers(dtype: str) -> np.dtype:
    found = np.dtype(dtype)
    if found.kind not in _KINDS:
        raise ValueError(f"an array of {dtype}")
    return found

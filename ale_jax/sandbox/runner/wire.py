"""Frames on stdin and stdout: a big-endian u32 length, then so many bytes.

A request is a JSON frame, then data frames, then an empty one. A reply is data frames, an empty
one, then a JSON frame: the outcome comes last because only then is it known.
"""

import json
import os
import struct
from collections.abc import Iterator

CHUNK = 1 << 16


def _receive_exactly(size: int) -> bytes:
    parts = []
    while size:
        part = os.read(0, min(size, CHUNK))
        if not part:
            os._exit(0)  # the owner closed its end
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def receive() -> bytes:
    return _receive_exactly(struct.unpack(">I", _receive_exactly(4))[0])


def receive_data() -> Iterator[bytes]:
    while frame := receive():
        yield frame


def send(data: bytes) -> None:
    """Sends one data frame; no data is no frame."""
    if data:
        _send_frame(data)


def _send_frame(content: bytes) -> None:
    view = memoryview(struct.pack(">I", len(content)) + content)
    while view:
        view = view[os.write(1, view) :]


def send_reply(reply: dict) -> None:
    _send_frame(b"")
    _send_frame(json.dumps(reply).encode())

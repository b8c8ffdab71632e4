"""JSON objects in frames of a 4-byte length, between the rollout workers and the policy server.

Neither end believes the other: lengths are capped, and a frame that began must end in time.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

MAX_FRAME_BYTES = 4 << 20
FRAME_S = 30.0


class WireError(ConnectionError):
    """What came is no frame, or came too slowly. The connection is of no further use."""


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Sends one frame. Errors: WireError if it is too long, OSError."""
    data = json.dumps(message).encode()
    if len(data) > MAX_FRAME_BYTES:
        raise WireError(f"a frame of {len(data)} bytes is longer than {MAX_FRAME_BYTES}")
    connection.settimeout(FRAME_S)
    connection.sendall(struct.pack(">I", len(data)) + data)


def receive(
    connection: socket.socket, max_bytes: int = MAX_FRAME_BYTES, patience: float | None = None
) -> dict[str, Any] | None:
    """The next frame; None if the far end hung up before it began.

    patience: seconds until the frame begins; None waits as long as the connection lasts.
    Errors: WireError, OSError.
    """
    connection.settimeout(patience)
    begin = connection.recv(4)
    if not begin:
        return None
    deadline = time.monotonic() + FRAME_S
    (size,) = struct.unpack(">I", begin + _exactly(connection, 4 - len(begin), deadline))
    if size > max_bytes:
        raise WireError(f"a frame of {size} bytes where {max_bytes} are allowed")
    return _parse(_exactly(connection, size, deadline))


def _exactly(connection: socket.socket, size: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise WireError(f"a frame took longer than {FRAME_S:g} s")
        connection.settimeout(left)
        part = connection.recv(min(size - len(data), 1 << 16))
        if not part:
            raise WireError("hung up in the middle of a frame")
        data += part
    return bytes(data)


def _parse(data: bytes) -> dict[str, Any]:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise WireError(f"a frame is not JSON: {error!s:.200}") from error
    if not isinstance(message, dict):
        raise WireError(f"a frame is not an object: {message!r:.80}")
    return message

"""The connection between a rollout worker and the policy server: its frames, and the worker's end.

A frame is a JSON object behind a length of 4 bytes. Neither end trusts the other: lengths are
capped, and a frame that has begun must be complete in time.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

from ale_jax.agent.api import Message, PolicyError, Reply

CONNECT_S = 10.0
MAX_FRAME_BYTES = 4 << 20
FRAME_S = 30.0


@dataclasses.dataclass(frozen=True)
class PolicyAddress:
    """Where the policy server listens, and the token that it requires."""

    host: str
    port: int
    token: str = dataclasses.field(repr=False)


class PolicyClient:
    """An `agent.api.Policy`. It connects at its first reply; use it in a `with` block.

    A reply has no timeout. Only the controller knows whether its engine is compiling or has failed,
    and if the controller dies, the connection ends.
    """

    def __init__(self, address: PolicyAddress, conversation: str):
        self._address, self._conversation = address, conversation
        self._connection: socket.socket | None = None

    def reply(self, new_messages: Sequence[Message]) -> Reply:
        messages = [dataclasses.asdict(message) for message in new_messages]
        answer = self._ask({"conversation": self._conversation, "messages": messages})
        if "error" in answer:
            raise PolicyError(f"the policy did not answer: {answer['error']}")
        return Reply(answer["text"], answer["stop"])

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def __enter__(self) -> PolicyClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            self._connection = self._connection or self._connect()
            send(self._connection, request)
            answer = receive(self._connection)
        except OSError as error:
            where = f"{self._address.host}:{self._address.port}"
            raise PolicyError(f"no connection to the policy at {where}: {error}") from error
        if answer is None:
            raise PolicyError("the policy server hung up")
        return answer

    def _connect(self) -> socket.socket:
        address = (self._address.host, self._address.port)
        connection = socket.create_connection(address, timeout=CONNECT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A controller whose machine has failed does not close its connections.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        send(connection, {"token": self._address.token})
        return connection


class WireError(ConnectionError):
    """The peer sent no valid frame, or was too slow. The connection cannot be used any more."""


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
    """Receives the next frame; None if the peer closed the connection before it began.

    patience: maximum seconds until the frame begins; None waits as long as the connection lasts.
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

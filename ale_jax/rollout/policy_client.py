"""The policy as a rollout worker sees it: one conversation, through the policy server."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Sequence
from typing import Any

from ale_jax.agent.api import Message, PolicyError, Reply
from ale_jax.rollout import wire

CONNECT_S = 10.0


@dataclasses.dataclass(frozen=True)
class PolicyAddress:
    """Where the policy server listens, and the token that it asks for."""

    host: str
    port: int
    token: str = dataclasses.field(repr=False)


class PolicyClient:
    """An `agent.api.Policy`. It connects at its first reply; use it in a `with` block.

    A reply is waited for as long as the connection lasts: only the controller knows whether its
    engine is compiling or gone, and when it is gone so is the connection.
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
            wire.send(self._connection, request)
            answer = wire.receive(self._connection)
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
        # A controller whose machine vanished sends no goodbye.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        wire.send(connection, {"token": self._address.token})
        return connection

"""The policy server, through which rollout workers in other processes call the ledger."""

from __future__ import annotations

import contextlib
import hmac
import logging
import secrets
import socket
import socketserver
import threading
from collections.abc import Callable
from typing import Any, Protocol

from ale_jax.agent.api import Message, Reply
from ale_jax.rollout.engine import EngineStopped
from ale_jax.rollout.policy_client import PolicyAddress, WireError, receive, send

TOKEN_BYTES = 16
MAX_TOKEN_FRAME_BYTES = 256
TOKEN_S = 10.0
MAX_CONNECTIONS = 1024
ROLES = ("system", "user", "tool")  # what the policy itself wrote never comes back as text

log = logging.getLogger(__name__)


class Replies(Protocol):
    """The part of the ledger that the server uses."""

    def reply(self, name: str, new_messages: list[Message]) -> Reply: ...


class PolicyServer:
    """Serves `ledger.reply` on a TCP port of its own choice, one thread per connection.

    A client first sends {"token"}, then any number of {"conversation", "messages"}, each answered
    by {"text", "stop"} or {"error"}. A client that violates the protocol is disconnected; the
    others are not affected. The server does not open or end conversations, and answers a name that
    is not open with an error.
    """

    def __init__(self, ledger: Replies, host: str = "127.0.0.1"):
        self._ledger = ledger
        self._speaking: set[str] = set()
        self._lock = threading.Lock()
        self._server = _Server(host, self._serve)
        port = self._server.server_address[1]
        self.address = PolicyAddress(host, port, secrets.token_urlsafe(TOKEN_BYTES))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="policy-server", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Disconnects all clients. A reply in progress is completed by the ledger and discarded."""
        self._server.close()
        self._thread.join()

    def __enter__(self) -> PolicyServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _serve(self, connection: socket.socket) -> None:
        if not self._admits(receive(connection, MAX_TOKEN_FRAME_BYTES, TOKEN_S)):
            raise WireError("wrong token")
        while (request := receive(connection)) is not None:
            send(connection, self._answer(*_parse(request)))

    def _admits(self, hello: dict[str, Any] | None) -> bool:
        token = hello.get("token") if hello else None
        return isinstance(token, str) and hmac.compare_digest(
            token.encode("utf-8", "replace"), self.address.token.encode()
        )

    def _answer(self, conversation: str, messages: list[Message]) -> dict[str, str]:
        with self._lock:
            if conversation in self._speaking:
                return {"error": "a reply in this conversation is under way"}
            self._speaking.add(conversation)
        try:
            reply = self._ledger.reply(conversation, messages)
        except KeyError:
            return {"error": "there is no such conversation"}
        except EngineStopped as error:
            return {"error": str(error)}
        finally:
            with self._lock:
                self._speaking.remove(conversation)
        return {"text": reply.text, "stop": reply.stop}


class _Server(socketserver.ThreadingTCPServer):
    """Keeps track of its connections, so that it can close them."""

    daemon_threads = True
    block_on_close = False  # a thread may wait for an engine that is closed after the server
    request_queue_size = 128

    def __init__(self, host: str, serve: Callable[[socket.socket], None]):
        self._serve = serve
        self._connections: set[socket.socket] = set()
        super().__init__((host, 0), socketserver.BaseRequestHandler)

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        for connection in tuple(self._connections):
            with contextlib.suppress(OSError):  # the client went first
                connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it

    def verify_request(self, request: socket.socket, client_address: Any) -> bool:
        return len(self._connections) < MAX_CONNECTIONS

    def process_request(self, request: socket.socket, client_address: Any) -> None:
        self._connections.add(request)
        request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A rollout worker whose machine vanished sends no goodbye.
        request.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        super().process_request(request, client_address)

    def finish_request(self, request: socket.socket, client_address: Any) -> None:
        try:
            self._serve(request)
        except OSError as error:
            log.warning("the connection from %s:%s was ended: %s", *client_address, error)

    def shutdown_request(self, request: socket.socket) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: socket.socket, client_address: Any) -> None:
        log.exception("serving %s:%s failed", *client_address)


def _parse(request: dict[str, Any]) -> tuple[str, list[Message]]:
    """The conversation and its messages, at least one. Errors: WireError."""
    try:
        conversation = request["conversation"]
        messages = [Message(each["role"], each["content"]) for each in request["messages"]]
    except (KeyError, TypeError) as error:
        raise WireError(f"not a request: {error!r:.200}") from error
    if not isinstance(conversation, str) or not messages:
        raise WireError("a request names a conversation and brings at least one message")
    for message in messages:
        if message.role not in ROLES or not isinstance(message.content, str):
            raise WireError(f"not a message: {message!r:.200}")
    return conversation, messages

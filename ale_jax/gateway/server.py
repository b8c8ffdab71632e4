"""The gateway's server, in a thread of the process that has the engine."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import threading
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

BACKLOG = 2048
MAX_CONNECTIONS = 4096  # more are refused, with 503
LEAVE_S = 5  # for calls in progress, when the server is closed
# Longer than clients keep a silent connection (OpenAI's and Anthropic's 5 s, litellm's 15 s) and
# than most commands of agents take. If the server closed it at the moment in which a client sends
# its next call, the call would fail.
KEEP_ALIVE_S = 180
# A client sends the headers of a request at once.
HEADERS_S, MAX_HEADERS_BYTES = 20.0, 1 << 16


class _Punctual(HttpToolsProtocol):
    """Closes a connection whose request has not all its headers after HEADERS_S, or has more than
    MAX_HEADERS_BYTES of them. uvicorn's own limits begin after the first answer."""

    _late: asyncio.TimerHandle | None = None  # while headers are to come
    _received = 0  # of them
    _is_within = False  # a request, of which something has come, and something is to come

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # Also empty lines before a request, which begin none, but end uvicorn's wait for it.
        if self._late is None and not self._is_within:
            self._expect()
        super().data_received(data)
        if self._late is None or self.transport.is_closing():
            return
        self._received += len(data)
        if self._received > MAX_HEADERS_BYTES:
            self.send_400_response(f"a request may have {MAX_HEADERS_BYTES} bytes of headers")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_within = True
        if self._late is None:  # behind another one, in the same piece
            self._expect()

    def on_headers_complete(self) -> None:
        self._arrived()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_within = False
        super().on_message_complete()

    def _expect(self) -> None:
        self._late, self._received = self.loop.call_later(HEADERS_S, self.transport.close), 0

    def _arrived(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


@contextlib.contextmanager
def served(
    app: ASGIApp, host: str = "127.0.0.1", port: int = 0, leave_seconds: float = LEAVE_S
) -> Iterator[str]:
    """Yields the base URL while it serves. port: 0 for one that is free. leave_seconds: how long it
    waits at the end for calls in progress.

    ValueError if it cannot listen there.
    """
    with _listener(host, port) as listener:
        config = uvicorn.Config(
            app,
            loop="uvloop",  # with httptools, a call takes a fifth less of the server's time
            http=_Punctual,
            # By its own config, uvicorn would close the handlers of the whole process's logging.
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,  # nothing here asks whom a call came through
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=math.ceil(leave_seconds),
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(
            target=server.run, args=([listener],), name="gateway", daemon=True
        )
        thread.start()  # the socket listens already
        try:
            yield f"http://{host}:{listener.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            thread.join()


def _listener(host: str, port: int) -> socket.socket:
    # asyncio sends at once only on sockets that name their protocol; others wait for the client to
    # acknowledge the headers, which takes it 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:  # the port is taken, or none
        listener.close()
        raise ValueError(
            f"the gateway cannot listen on {host}:{port}: {error}; choose another port"
        ) from error
    return listener

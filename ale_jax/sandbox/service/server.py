"""The server that runs the service, in this event loop or in a thread. Connections that wait for a
request make room for others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ale_jax.sandbox.service.access import ServiceSettings
from ale_jax.sandbox.service.guard import Guard

HEADER_S = 10.0
MOST = 10_000


def raise_file_limit() -> int:
    """Raises the soft limit of open files of this process to the hard one, and returns it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def max_connections() -> int:
    """Half of the files that this process may open; the rest is for sandboxes."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else min(MOST, soft // 2)


class Idle:
    """The connections that wait for a request, of one server.

    Those that have never sent one come first when room is needed, because whoever opens them need
    not have a token; then those that have waited longest.
    """

    def __init__(self, most: int):
        self._most = most
        # Dictionaries as ordered sets: the one that has waited longest comes first.
        self._unused: dict[asyncio.Transport, None] = {}
        self._kept: dict[asyncio.Transport, None] = {}

    def add(self, transport: asyncio.Transport, was_used: bool) -> None:
        (self._kept if was_used else self._unused)[transport] = None

    def remove(self, transport: asyncio.Transport) -> None:
        self._unused.pop(transport, None)
        self._kept.pop(transport, None)

    def make_room(self, connections: int) -> bool:
        """Closes one of them if there are more connections than there may be. False if none
        waits."""
        if connections <= self._most:
            return True
        for waiting in (self._unused, self._kept):
            if waiting:
                oldest = next(iter(waiting))
                del waiting[oldest]
                oldest.abort()
                return True
        return False


class HttpConnection(H11Protocol):
    """An HTTP connection that is closed unless a request's header is complete in HEADER_S seconds
    from its first byte, or from the beginning of the connection. uvicorn limits only the time
    between two requests, and forgets that limit at the first byte."""

    idle: Idle  # set by the subclass that `protocol` makes

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._late: asyncio.TimerHandle | None = None
        if self.idle.make_room(len(self.connections)):
            self.idle.add(transport, was_used=False)
            self._expect_header()
        else:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self._expect_header()
        super().data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(error)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and self._waits:
            self.idle.add(self.transport, was_used=True)
            if self.conn.trailing_data[0]:  # the next header has begun already
                self._expect_header()

    def handle_events(self) -> None:
        super().handle_events()
        if not self._waits:
            self._stop_waiting()

    def handle_websocket_upgrade(self, event) -> None:
        self._stop_waiting()
        super().handle_websocket_upgrade(event)

    @property
    def _waits(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _expect_header(self) -> None:
        if self._late is None and self._waits:
            self._late = self.loop.call_later(HEADER_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        self.idle.remove(self.transport)
        if self._late is not None:
            self._late.cancel()
            self._late = None


def protocol(most: int) -> type[HttpConnection]:
    """The protocol of one server with at most that many connections."""
    return type("LimitedConnection", (HttpConnection,), {"idle": Idle(most)})


LEAVE_S = 5
KEEP_ALIVE_S = 75
MAX_FRAME = 64 << 10  # bytes in one frame of a terminal's input
BACKLOG = 2048
# Creates the application in the loop that serves it, and releases its resources afterwards.
Open = Callable[[], AbstractAsyncContextManager[Guard]]


class _Server(uvicorn.Server):
    """connection: the protocol of one connection. tls: what encrypts it; None: nothing."""

    def __init__(
        self,
        config: uvicorn.Config,
        connection: type[HttpConnection],
        tls: ssl.SSLContext | None,
    ):
        super().__init__(config)
        self._connection, self._tls = connection, tls

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:
        """Leaves signals to its caller: uvicorn would raise them again before a pool is closed."""
        return contextlib.nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Gives a TLS handshake as long as a header has; uvicorn's gives it a minute."""
        self.servers = [
            await asyncio.get_running_loop().create_server(
                self._accept,
                sock=each,
                backlog=BACKLOG,
                ssl=self._tls,
                ssl_handshake_timeout=HEADER_S if self._tls else None,
            )
            for each in sockets or ()
        ]
        self.started = True

    def _accept(self) -> HttpConnection:
        return self._connection(config=self.config, server_state=self.server_state, app_state={})


def tls_of(settings: ServiceSettings) -> ssl.SSLContext | None:
    """Returns what the service encrypts with; None: nothing. Errors: ValueError."""
    if not settings.tls_cert:
        return None
    cert, key = settings.tls_cert, settings.tls_key
    try:
        if os.stat(key).st_mode & 0o077:
            raise ValueError(f"private key {key!r} can be read by others; type: chmod 600 {key}")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key, password="")  # never asks the terminal for one
    except OSError as error:  # also what is no certificate, or another's key
        raise ValueError(
            f"service cannot use certificate {cert!r} with private key {key!r}: {error};"
            " both must be PEM, the key without a password"
        ) from error
    return context


def make_server(app: Guard, tls: ssl.SSLContext | None) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="websockets-sansio",  # uvicorn's other one needs a deprecated part of websockets
        ws_max_size=MAX_FRAME,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=LEAVE_S,
    )
    return _Server(config, protocol(max_connections()), tls)


def bind(settings: ServiceSettings) -> socket.socket:
    """Returns a listening socket. Errors: ValueError if the address is not available."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio sends small answers at once (TCP_NODELAY) only if the protocol is given here. Without
    # it, every call takes 40 ms longer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ValueError(
            f"service cannot listen on {settings.host}:{settings.port}: {error};"
            " choose another host or port"
        ) from error
    return listener


def url_of(listener: socket.socket, tls: ssl.SSLContext | None) -> str:
    host, port = listener.getsockname()[:2]
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


async def serve(app: Guard, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
    """Serves until it is cancelled; calls in progress then have LEAVE_S seconds to end."""
    server = make_server(app, tls)
    serving = asyncio.ensure_future(server.serve([listener]))
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        server.should_exit = True
        await serving
        raise


@contextlib.contextmanager
def serve_in_thread(open_app: Open, settings: ServiceSettings) -> Iterator[str]:
    """Yields its URL while it serves. Errors: those of `open_app`, and ValueError of `bind` and
    `tls_of`."""
    started: Future[uvicorn.Server] = Future()
    tls = tls_of(settings)
    with bind(settings) as listener:
        thread = threading.Thread(
            target=lambda: asyncio.run(_serve(open_app, listener, tls, started)),
            name="sandbox-service",
            daemon=True,
        )
        thread.start()
        server = started.result()
        try:
            yield url_of(listener, tls)
        finally:
            server.should_exit = True
            thread.join()


async def _serve(
    open_app: Open, listener: socket.socket, tls: ssl.SSLContext | None, started: Future
) -> None:
    try:
        async with open_app() as app:
            server = make_server(app, tls)
            started.set_result(server)  # its socket is listening already
            await server.serve([listener])
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)

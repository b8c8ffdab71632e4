"""Runs the service: in this event loop, or in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager

import uvicorn

from ale_jax.sandbox.service.guard import Guard
from ale_jax.sandbox.service.settings import ServiceSettings

LEAVE_S = 5
KEEP_ALIVE_S = 75
MAX_CONNECTIONS = 1000  # below the usual limit of open files
MAX_FRAME = 64 << 10  # bytes of a terminal's input at once
BACKLOG = 512
# Makes the application within the loop that serves it, and frees what it holds afterwards.
Open = Callable[[], AbstractAsyncContextManager[Guard]]


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs it: uvicorn would raise them again before a pool is closed."""

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def make_server(app: Guard) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        backlog=BACKLOG,
        limit_concurrency=MAX_CONNECTIONS,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="websockets-sansio",  # the other needs a part of websockets that will go
        ws_max_size=MAX_FRAME,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=LEAVE_S,
    )
    return _Server(config)


def bind(settings: ServiceSettings) -> socket.socket:
    """Errors: ValueError if the address cannot be had."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # The protocol is named since asyncio sends small answers at once (TCP_NODELAY) only if it is:
    # without, every call takes 40 ms more.
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


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(app: Guard, listener: socket.socket) -> None:
    """Until it is cancelled; then calls under way have LEAVE_S seconds to end."""
    server = make_server(app)
    serving = asyncio.ensure_future(server.serve([listener]))
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        server.should_exit = True
        await serving
        raise


@contextlib.contextmanager
def serve_in_thread(open_app: Open, settings: ServiceSettings) -> Iterator[str]:
    """Its URL, while it serves. Errors: those of `open_app`, and ValueError of `bind`."""
    started: Future[uvicorn.Server] = Future()
    with bind(settings) as listener:
        thread = threading.Thread(
            target=lambda: asyncio.run(_serve(open_app, listener, started)),
            name="sandbox-service",
            daemon=True,
        )
        thread.start()
        server = started.result()
        try:
            yield url_of(listener)
        finally:
            server.should_exit = True
            thread.join()


async def _serve(open_app: Open, listener: socket.socket, started: Future) -> None:
    try:
        async with open_app() as app:
            server = make_server(app)
            started.set_result(server)  # its socket listens already
            await server.serve([listener])
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)

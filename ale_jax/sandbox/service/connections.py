"""Connections of the server: those that wait for a request make room for others."""

from __future__ import annotations

import asyncio
import resource

from uvicorn.protocols.http.h11_impl import H11Protocol

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

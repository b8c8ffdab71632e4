"""Ends a run on SIGINT or SIGTERM where it is safe, and within a grace.

A signal only sets a flag, which the run's loops look at. An exception raised by a signal handler
would land anywhere: inside a lock, or in a `__del__`, where Python swallows it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = 130  # the exit code; shells use it for Ctrl-C
# Signals that follow the first one as quickly are the same request: `make` and a terminal send one
# each to the same process.
SAME_S = 1.0


class StopSignals:
    """Listens for SIGINT and SIGTERM within a `with` block, which the main thread enters.

    The first one makes `check` raise. If the process has not ended `grace_seconds` later, or when a
    second signal arrives, the process ends at once with exit code 130.

    A thread hears of signals through a socket that Python's C handler writes to, so that this works
    while the main thread compiles or waits for a device, where no Python handler can run.
    """

    def __init__(self, grace_seconds: float):
        self._grace_seconds = grace_seconds
        self._requested = threading.Event()

    def requested(self) -> bool:
        return self._requested.is_set()

    def check(self) -> None:
        """Raises KeyboardInterrupt if the run should stop. To be called where nothing is half
        done."""
        if self._requested.is_set():
            raise KeyboardInterrupt

    def checked(self, items: Iterable[T]) -> Iterator[T]:
        """`items`, with a `check` before each."""
        for item in items:
            self.check()
            yield item

    def __enter__(self) -> StopSignals:
        self._hears, tells = socket.socketpair()
        tells.setblocking(False)
        self._tells = tells
        self._fd_before = signal.set_wakeup_fd(tells.fileno(), warn_on_full_buffer=False)
        self._before = {each: signal.signal(each, lambda *_: None) for each in SIGNALS}
        threading.Thread(target=self._listen, name="stop-signals", daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)
        signal.set_wakeup_fd(self._fd_before)
        self._tells.close()  # ends the thread

    def _listen(self) -> None:
        with self._hears:
            if not self._next_signal():
                return
            first = time.monotonic()
            self._requested.set()
            try:
                while self._next_signal(first + self._grace_seconds):
                    if time.monotonic() - first > SAME_S:
                        _leave("at once, without saving")
            except TimeoutError:
                _leave(f"the newest step could not be saved within {self._grace_seconds:g} s")

    def _next_signal(self, deadline: float | None = None) -> bool:
        """Waits for SIGINT or SIGTERM; False if the block has ended. TimeoutError at `deadline`."""
        while True:
            if deadline is not None:
                self._hears.settimeout(max(deadline - time.monotonic(), 1e-3))
            received = self._hears.recv(1)
            if not received or received[0] in SIGNALS:
                return bool(received)


def _leave(why: str) -> None:
    # Neither exception handlers nor atexit run: the main thread may be stuck.
    text = f"interrupted ({why}): the same command continues from the last checkpoint\n"
    os.write(sys.stderr.fileno(), text.encode())
    os._exit(INTERRUPTED)

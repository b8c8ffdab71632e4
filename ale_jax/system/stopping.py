"""Ends a run on SIGINT or SIGTERM where it is safe, and within a grace.

A signal only sets a flag, which the run's loops look at. An exception raised by a signal handler
would land anywhere: inside a lock, or in a `__del__`, where Python swallows it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from ale_jax.system.lasting_output import write_last_words

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# What a process sends to itself when another one of its run was told to end. All of them are often
# told, at different times, so it is never taken as a second signal.
ANOTHER_WAS_TOLD = signal.SIGUSR1
INTERRUPTED = 130  # the exit code; shells use it for Ctrl-C
# Signals that follow the first one as quickly are the same request: `make` and a terminal send one
# each to the same process.
SAME_S = 1.0
HANDLED = b"\0"  # from the Python handler; the C handler sends a signal's number


class StopSignals:
    """Listens for SIGINT and SIGTERM within a `with` block, which the main thread enters.

    The first one makes `check` raise, and so does ANOTHER_WAS_TOLD. If the process has not ended
    `grace_seconds` later, or when a second signal arrives, the process ends at once with exit code
    130.

    A thread hears of each signal twice: from Python's C handler, through a socket, also while the
    main thread compiles or waits for a device, and from the Python handler, since event loops of
    other libraries in the main thread take the C handler's socket away.
    """

    def __init__(self, grace_seconds: float, on_request: Callable[[], None] = lambda: None):
        """on_request: called at the first signal, by another thread."""
        self._grace_seconds, self._on_request = grace_seconds, on_request
        self._requested = threading.Event()
        self._is_saved = self._another_was_told = False
        self._by_socket = self._by_handler = 0

    def note_saved(self) -> None:
        """Notes that nothing is lost any more if the process ends at once, without cleaning up."""
        self._is_saved = True

    def check(self) -> None:
        """Raises KeyboardInterrupt if the run should stop. To be called by the main thread, where
        nothing is half done."""
        signal.set_wakeup_fd(self._tells.fileno(), warn_on_full_buffer=False)
        if self._requested.is_set():
            raise KeyboardInterrupt

    def checked(self, items: Iterable[T]) -> Iterator[T]:
        """Yields `items`, with a `check` before each."""
        for item in items:
            self.check()
            yield item

    def __enter__(self) -> StopSignals:
        self._hears, self._tells = socket.socketpair()
        self._tells.setblocking(False)
        self._fd_before = signal.set_wakeup_fd(self._tells.fileno(), warn_on_full_buffer=False)
        handled = (*SIGNALS, ANOTHER_WAS_TOLD)
        self._before = {each: signal.signal(each, self._handle) for each in handled}
        threading.Thread(target=self._listen, name="stop-signals", daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)
        signal.set_wakeup_fd(self._fd_before)
        self._tells.close()  # ends the thread

    def _handle(self, number: int, frame: object) -> None:
        if number == ANOTHER_WAS_TOLD:
            self._another_was_told = True
        else:
            self._by_handler += 1
        with contextlib.suppress(BlockingIOError):  # then the thread has enough to read
            self._tells.send(HANDLED)

    def _listen(self) -> None:
        with self._hears:
            while not (self._signals or self._another_was_told):
                if not self._hear():
                    return
            deadline = time.monotonic() + self._grace_seconds
            self._requested.set()
            self._on_request()
            first: float | None = None  # when the first signal was heard
            heard = 0
            try:
                while True:
                    if self._signals > heard:
                        heard, now = self._signals, time.monotonic()
                        first = first or now
                        if now - first > SAME_S:
                            self._leave("at once, without saving")
                    if not self._hear(deadline):
                        return
            except TimeoutError:
                self._leave(f"the newest step could not be saved within {self._grace_seconds:g} s")

    @property
    def _signals(self) -> int:
        return max(self._by_socket, self._by_handler)

    def _hear(self, deadline: float | None = None) -> bool:
        """Waits for the next byte; False if the block has ended. TimeoutError at `deadline`."""
        if deadline is not None:
            self._hears.settimeout(max(deadline - time.monotonic(), 1e-3))
        received = self._hears.recv(1)
        if not received:
            return False
        self._by_socket += received[0] in SIGNALS
        self._another_was_told |= received[0] == ANOTHER_WAS_TOLD
        return True

    def _leave(self, why: str) -> None:
        # Neither exception handlers nor atexit run: the main thread may be stuck. Sandboxes and
        # Ray's processes end with this one.
        reason = "" if self._is_saved else f" ({why})"
        text = f"interrupted{reason}: the same command continues from the last checkpoint\n"
        write_last_words(text)
        os._exit(INTERRUPTED)

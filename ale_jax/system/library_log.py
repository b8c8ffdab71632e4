"""library.log: what libraries log, and what goes wrong in their threads.

When a disk is full, a single failed save makes them print hundreds of lines, between which nobody
finds the one line that says what to do.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from pathlib import Path

LIBRARY_LOG_FILE = "library.log"

_log = logging.getLogger("ale_jax")


class LibraryLog:
    """Within a `with` block, Python's log and warnings go to a file in the run's folder instead of
    stderr, together with exceptions that end a thread or that nobody can catch."""

    def __init__(self, workdir: Path, name: str = LIBRARY_LOG_FILE):
        self._handler = _Handler(workdir / name, delay=True)
        self._handler.setFormatter(
            logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
        )

    def __enter__(self) -> LibraryLog:
        root = logging.getLogger()
        self._before = root.handlers, threading.excepthook, sys.unraisablehook
        root.handlers = [self._handler]
        logging.captureWarnings(True)
        threading.excepthook, sys.unraisablehook = _ended_thread, _unraisable
        return self

    def __exit__(self, *exc: object) -> None:
        root = logging.getLogger()
        logging.captureWarnings(False)
        root.handlers, threading.excepthook, sys.unraisablehook = self._before
        with contextlib.suppress(OSError):  # as in `handleError`
            self._handler.close()


class _Handler(logging.FileHandler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # it opens the file with the first record, before it minds errors
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Drops the record. If the disk is full, the run's own error says so."""


def _ended_thread(args: threading.ExceptHookArgs) -> None:
    name = args.thread.name if args.thread else "unknown"
    error = (args.exc_type, args.exc_value, args.exc_traceback)
    _log.error("the thread %s ended", name, exc_info=error)


def _unraisable(args: sys.UnraisableHookArgs) -> None:
    error = (args.exc_type, args.exc_value, args.exc_traceback)
    _log.error("%s: %r", args.err_msg or "ignored", args.object, exc_info=error)

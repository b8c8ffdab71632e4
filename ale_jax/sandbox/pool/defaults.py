"""The clock and the record of a pool that was given none."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)


def log_event(kind: str, detail: str, **fields: str | int | float | bool) -> None:
    """A `Record` in the log."""
    log.info("%s: %s %s", kind, detail, fields)


def steady_clock() -> Callable[[], float]:
    """Seconds since the epoch, as of now, by a clock that nobody sets: limits are held by it."""
    offset = time.time() - time.monotonic()
    return lambda: time.monotonic() + offset

"""How Python is set while a process serves a policy: its threads, and its garbage collector."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

YOUNG_OBJECTS = 10_000  # Python's own is 700
# How long a thread may run Python code while others wait. With Python's 5 ms, GPUs idle: a dispatch
# of the engine to a GPU gives up the interpreter's lock dozens of times, and has to wait as often
# for the thread that takes it (docs/decisions.md).
THREAD_SWITCH_SECONDS = 1e-4


@contextlib.contextmanager
def made_for_serving() -> Iterator[None]:
    """Lets threads take turns every THREAD_SWITCH_SECONDS within the block, and makes the collector
    leave alone what is there at its beginning, and look at the rest less often.

    Imports and compiled programs are some 400,000 objects that stay. A full collection, in which no
    thread goes on, takes 0.2 s with them. Collections were an eighth of what the controller's
    threads of Python, the gateway's above all, cost in the quickstart.
    """
    with switching(THREAD_SWITCH_SECONDS):
        thresholds = gc.get_threshold()
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, *thresholds[1:])
        try:
            yield
        finally:
            gc.set_threshold(*thresholds)
            gc.unfreeze()


@contextlib.contextmanager
def switching(seconds: float) -> Iterator[None]:
    """Lets threads take turns after so many seconds within the block."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)

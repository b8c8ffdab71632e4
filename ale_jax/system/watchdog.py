"""Says what a run waits for once nothing has been finished for a long time."""

from __future__ import annotations

import faulthandler
import logging
import threading
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import NamedTuple

from ale_jax.monitor.progress import duration

LOOK_S = 1.0  # between two looks
STACKS_FILE = "stacks.txt"  # of a run that stood still

_log = logging.getLogger(__name__)


class Sign(NamedTuple):
    """What the watchdog sees of a run. progress: changes when something is finished. waits_for:
    what the next thing depends on."""

    progress: Hashable
    waits_for: str


class Watchdog:
    """Looks at a run from a thread of its own, within a `with` block, because all other threads may
    be stuck. It only speaks; deadlines act.

    After `seconds` without progress it calls `say` with what the run waits for, and again after
    twice as long, and so on. An OSError of `say` is logged: whether a full disk ends the run is for
    the run's own threads to find out.
    """

    def __init__(
        self,
        seconds: float,
        look: Callable[[], Sign],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._seconds, self._look, self._say, self._clock = seconds, look, say, clock
        self._progress: Hashable = None
        self._since, self._patience = clock(), seconds
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(LOOK_S):
            self.look()

    def watch(self, look: Callable[[], Sign]) -> None:
        """Looks by `look` from now on."""
        self._look = look

    def look(self) -> None:
        """Compares with the look before."""
        sign, now = self._look(), self._clock()
        if sign.progress != self._progress:
            self._progress, self._since, self._patience = sign.progress, now, self._seconds
        elif now - self._since >= self._patience:
            self._patience *= 2
            text = f"nothing was finished for {duration(now - self._since)}: {sign.waits_for}"
            try:
                self._say(text)
            except OSError as error:
                _log.warning("%s (not recorded: %s)", text, error)


def append_stacks(path: Path, heading: str) -> None:
    """Appends the Python stacks of all threads, for whoever looks for the one that is stuck."""
    with path.open("a") as file:
        print(heading, file=file, flush=True)  # because what follows goes around the buffer
        faulthandler.dump_traceback(file)
        print(file=file)

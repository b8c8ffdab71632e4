"""The live view of a run: drawn in place on a terminal, plain lines everywhere else."""

from __future__ import annotations

import collections
import dataclasses
import os
import threading
import time
from collections.abc import Callable
from typing import TextIO

from rich.console import Console, RenderableType
from rich.live import Live

from ale_jax.monitor.progress_view import View, duration, panel, plain_figures
from ale_jax.monitor.text import one_line

PLAIN_SECONDS = 5.0
MAX_NOTE_CHARS = 300


@dataclasses.dataclass(frozen=True)
class Figures:
    """What is shown beside the bar; None is not shown. Rates are in [0, 1].

    success: of recent episodes; reward: their mean; staleness: in versions of the weights;
    tokens_per_second: policy tokens generated; sandboxes_restarted: since the run started.
    """

    success: float | None = None
    reward: float | None = None
    loss: float | None = None
    staleness_mean: float | None = None
    staleness_max: int | None = None
    tokens_per_second: float | None = None
    episodes: int | None = None
    sandboxes_up: int | None = None
    sandboxes_busy: int | None = None
    sandboxes_restarted: int | None = None


class Progress:
    """Shows one phase after the other. Use it in a `with` block, which gives the terminal back."""

    def __init__(self, console: Console, plain: bool, clock: Callable[[], float] = time.monotonic):
        self._console = console
        self._plain = plain
        self._clock = clock
        # The live view draws in a thread of its own.
        self._lock = threading.RLock()
        self._started = self._phase_started = self._printed = clock()
        self._name, self._total, self._done, self._told = "starting", 0, 0, 0
        self._figures = Figures()
        # A curve per phase: the success of an evaluation does not belong on that of training.
        self._success = collections.defaultdict(lambda: collections.deque(maxlen=400))
        self._live = None if plain else Live(console=console, get_renderable=self._draw)

    def phase(self, name: str, total: int) -> None:
        """Begins a phase of `total` steps; the figures of the last one are forgotten."""
        with self._lock:
            self._print_last_line()
            self._name, self._total, self._done, self._told = one_line(name, 40), total, 0, 0
            self._figures = Figures()
            self._phase_started = self._printed = self._clock()
            self._print_plain(f"{self._name}: {total} steps")

    def update(self, done: int, **figures: float | int | None) -> None:
        """`done` steps of the phase are finished; named `Figures` replace their last values."""
        with self._lock:
            self._figures = dataclasses.replace(self._figures, **figures)
            self._done = done
            if figures.get("success") is not None:
                self._success[self._name].append(figures["success"])
            if done == self._total or self._clock() - self._printed >= PLAIN_SECONDS:
                self._print_line()

    def note(self, text: str) -> None:
        """Prints a line above the live view, made harmless: it may quote a sandbox."""
        # Not under our lock: the live view takes its own and then ours, printing takes its own.
        self._print(one_line(text, MAX_NOTE_CHARS))

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            self._live.stop()
        self._print_last_line()

    def _view(self) -> View:
        now = self._clock()
        return View(
            phase=self._name,
            done=self._done,
            total=self._total,
            seconds=now - self._started,
            phase_seconds=now - self._phase_started,
            figures=dataclasses.asdict(self._figures),
            success=tuple(self._success[self._name]),
        )

    def _draw(self) -> RenderableType:
        with self._lock:
            return panel(self._view())

    def _print_last_line(self) -> None:
        if self._done != self._told:
            self._print_line()

    def _print_line(self) -> None:
        self._printed, self._told = self._clock(), self._done
        view = self._view()
        parts = [f"{view.phase} {view.done}/{view.total}", *plain_figures(view.figures)]
        if view.seconds_left:
            parts.append(f"{duration(view.seconds_left)} left")
        self._print_plain("  ".join(parts))

    def _print_plain(self, line: str) -> None:
        if self._plain:
            self._print(line)

    def _print(self, line: str) -> None:
        stamped = f"[{duration(self._clock() - self._started)}] {line}"
        self._console.print(stamped, markup=False, highlight=False, soft_wrap=True)


def make_progress(stream: TextIO, plain: bool | None = None) -> Progress:
    """A Progress on `stream`; plain: None lets the stream decide, whether it is a terminal."""
    if plain is None:
        plain = not stream.isatty() or os.environ.get("TERM", "dumb") == "dumb"
    return Progress(Console(file=stream, no_color=True if plain else None), plain)

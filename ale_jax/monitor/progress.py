"""The progress display of a run: live on a terminal, and plain lines everywhere else.

Pure functions turn the state of a phase into lines and rich renderables.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ale_jax.monitor.text import one_line

_BLOCKS = "▁▂▃▄▅▆▇█"
SPARKLINE_WIDTH = 32
PANEL_WIDTH = 96


@dataclasses.dataclass(frozen=True)
class View:
    """The state of a phase at one moment.

    seconds: since the start of the run. seconds_left: of the phase; None if it is not known yet.
    figures: as in `Figures`. compiling: programs that are being compiled. target: success rate at
    which the phase stops early.
    """

    phase: str
    done: int
    total: int
    seconds: float
    seconds_left: float | None
    figures: Mapping[str, float | None]
    success: Sequence[float]
    compiling: Sequence[str] = ()
    target: float | None = None

    @property
    def time_left(self) -> str:
        if not self.seconds_left:
            return ""
        most = "" if self.target is None else "at most "
        return f"{most}{duration(self.seconds_left)} left"


def sparkline(rates: Sequence[float], width: int = SPARKLINE_WIDTH) -> str:
    """Draws `rates` in [0, 1] as block characters; longer histories are averaged to `width`
    blocks."""
    if not rates:
        return ""
    columns = min(width, len(rates))
    edges = [i * len(rates) // columns for i in range(columns + 1)]
    means = [sum(rates[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round(min(1.0, max(0.0, mean)) * top)] for mean in means)


def duration(seconds: float) -> str:
    """Formats seconds as 8s, 3m05s or 2h10m."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    return f"{minutes // 60}h{minutes % 60:02d}m"


def plain_figures(figures: Mapping[str, float | None]) -> list[str]:
    """Returns the figures that are not None, as text."""
    words = [
        ("success {:.0%}", ["success"]),
        ("reward {:+.2f}", ["reward"]),
        ("loss {:.3f}", ["loss"]),
        ("staleness {:.1f} (max {})", ["staleness_mean", "staleness_max"]),
        ("{:,.0f} tokens/s", ["tokens_per_second"]),
        ("{:,} episodes", ["episodes"]),
        ("sandboxes {} up", ["sandboxes_up"]),
        ("{} busy", ["sandboxes_busy"]),
        ("{} restarted", ["sandboxes_restarted"]),
    ]
    return [
        form.format(*(figures[name] for name in names))
        for form, names in words
        if all(figures[name] is not None for name in names)
    ]


def panel(view: View) -> RenderableType:
    """Returns the live display, at most PANEL_WIDTH wide."""
    title = Text.assemble((" ale-jax ", "bold"), ("· ", "dim"), (f"{view.phase} ", "bold cyan"))
    framed = Panel(
        Group(_bar_row(view), Text(), _figure_table(view)),
        title=title,
        title_align="left",
        subtitle=Text(f" {duration(view.seconds)} elapsed ", style="dim"),
        subtitle_align="right",
        border_style="bright_black",
        padding=(1, 2),
    )
    return Constrain(framed, PANEL_WIDTH)


def _bar_row(view: View) -> RenderableType:
    row = Table.grid(padding=(0, 2), expand=True)
    row.add_column(ratio=1)
    row.add_column(justify="right", no_wrap=True)
    row.add_column(justify="right", no_wrap=True, style="dim")
    # With a total of None, rich shows a pulsing bar.
    total = view.total or None
    row.add_row(
        ProgressBar(total=total, completed=view.done, pulse=not view.done),
        f"{view.done:,}/{view.total:,}",
        view.time_left,
    )
    return row


def _figure_table(view: View) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True, min_width=len("staleness"))
    table.add_column(no_wrap=True)
    for what in view.compiling:
        table.add_row("compiling", Text(what, "yellow"))
    for label, value in _figure_rows(view):
        table.add_row(label, value)
    return table


def _figure_rows(view: View) -> list[tuple[str, Text]]:
    figures = view.figures
    rows = []
    if (success := figures["success"]) is not None:
        curve = (f"  {sparkline(view.success)}", "green")
        stops = "" if view.target is None else f"  stops at {view.target:.0%}"
        rate = (f"{success:>6.1%}", "bold green")
        rows.append(("success", Text.assemble(rate, (stops, "dim"), curve)))
    if (reward := figures["reward"]) is not None:
        rows.append(("reward", Text(f"{reward:>+6.2f}")))
    if (loss := figures["loss"]) is not None:
        rows.append(("loss", Text(f"{loss:>6.3f}")))
    if (mean := figures["staleness_mean"]) is not None:
        worst = figures["staleness_max"]
        tail = "" if worst is None else f" mean · {worst} max"
        rows.append(("staleness", Text.assemble(f"{mean:>6.2f}", (tail, "dim"))))
    if (speed := figures["tokens_per_second"]) is not None:
        rows.append(("tokens/s", Text(f"{speed:>6,.0f}")))
    if (episodes := figures["episodes"]) is not None:
        rows.append(("episodes", Text(f"{episodes:>6,}")))
    if (up := figures["sandboxes_up"]) is not None:
        rows.append(("sandboxes", _sandboxes(up, figures)))
    return rows


def _sandboxes(up: float, figures: Mapping[str, float | None]) -> Text:
    text = Text.assemble(f"{up:>6}", (" up", "dim"))
    if (busy := figures["sandboxes_busy"]) is not None:
        text.append(" · ", "dim").append(f"{busy}").append(" busy", "dim")
    if restarted := figures["sandboxes_restarted"]:
        text.append(" · ", "dim").append(f"{restarted} restarted", "yellow")
    return text


class Display(Console):
    """A console that falls silent when nobody reads it any more. Rich's would end the thread that
    prints: the run without saving, or a thread that others wait for."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


PLAIN_SECONDS = 5.0
MAX_NOTE_CHARS = 300


@dataclasses.dataclass(frozen=True)
class Figures:
    """The figures below the progress bar; None is not shown. Rates are in [0, 1].

    success: of recent episodes. reward: their mean. staleness_mean, staleness_max: in versions of
    the weights. tokens_per_second: policy tokens generated. sandboxes_restarted: since this process
    of the run began to play.
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
    """Shows one phase after another. Use it in a `with` block, which restores the terminal."""

    def __init__(self, console: Console, plain: bool, clock: Callable[[], float] = time.monotonic):
        self._console = console
        self._plain = plain
        self._clock = clock
        # The live display refreshes in its own thread.
        self._lock = threading.RLock()
        self._started = self._printed = clock()
        self._pace = Pace(0, self._started)
        self._compiling: list[str] = []
        self._target: float | None = None
        self._name, self._total, self._done, self._told = "starting", 0, 0, 0
        self._figures = Figures()
        # One curve per phase, so that evaluations and training are not mixed.
        self._success: dict[str, collections.deque[float]] = collections.defaultdict(
            lambda: collections.deque(maxlen=400)
        )
        self._live = None if plain else Live(console=console, get_renderable=self._draw)

    def phase(
        self,
        name: str,
        total: int,
        done: int = 0,
        unit: str = "steps",
        target: float | None = None,
    ) -> None:
        """Starts a phase of `total` steps, of which `done` are finished, and resets the figures.

        target: success rate at which the phase stops before its last step.
        """
        with self._lock:
            self._print_last_line()
            self._name, self._total = one_line(name, 40), total
            self._done = self._told = done
            self._figures, self._target = Figures(), target
            self._printed = self._clock()
            self._pace = Pace(done, self._printed)
            words = f"{self._name}: {total} {unit}"
            if target is not None:
                words = f"{self._name}: stops at success {target:.0%}, or after {total} {unit}"
            self._print_plain(words)

    def compile_started(self, what: str) -> None:
        with self._lock:
            self._pace.compiled()
            self._compiling.append(what)
            self._print_plain(f"compiling {what} ...")

    def compile_ended(self, what: str, seconds: float, told: bool = True) -> None:
        """Ends the note that `what` is being compiled. told: False for a program that is too small
        to report."""
        with self._lock:
            self._pace.compiled()
            if what in self._compiling:
                self._compiling.remove(what)
        if told:
            self.note(f"compiled {what} in {seconds:.1f} s")

    def update(self, done: int, **figures: Any) -> None:
        """Sets the number of finished steps of the phase, and updates the given `Figures`."""
        with self._lock:
            self._figures = dataclasses.replace(self._figures, **figures)
            self._done = done
            self._pace.update(done, self._clock())
            if figures.get("success") is not None:
                self._success[self._name].append(figures["success"])
            if done == self._total or self._clock() - self._printed >= PLAIN_SECONDS:
                self._print_line()

    def position(self) -> tuple[str, int]:
        """Returns the phase, or what is being compiled in it, and the number of its finished
        steps."""
        with self._lock:
            compiling = f"compiling {', '.join(self._compiling)}" if self._compiling else ""
            return compiling or self._name, self._done

    def note(self, text: str) -> None:
        """Prints a line above the live display. Control characters are replaced, because the text
        may quote a sandbox."""
        # Not under our lock, which could deadlock: printing takes the lock of the live display, and
        # the live display takes its own lock and then ours.
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
            seconds_left=self._pace.seconds_left(self._total),
            figures=dataclasses.asdict(self._figures),
            success=tuple(self._success[self._name]),
            compiling=tuple(self._compiling),
            target=self._target,
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
        if view.target is not None:
            parts.append(f"stops at success {view.target:.0%}")
        if view.time_left:
            parts.append(view.time_left)
        self._print_plain("  ".join(parts))

    def _print_plain(self, line: str) -> None:
        if self._plain:
            self._print(line)

    def _print(self, line: str) -> None:
        stamped = f"[{duration(self._clock() - self._started)}] {line}"
        self._console.print(stamped, markup=False, highlight=False, emoji=False, soft_wrap=True)


def make_progress(stream: TextIO, plain: bool | None = None) -> Progress:
    """Returns a Progress on `stream`. plain: whether to print plain lines; None: unless the stream
    is a terminal."""
    if plain is None:
        plain = not stream.isatty() or os.environ.get("TERM", "dumb") == "dumb"
    return Progress(Display(file=stream, no_color=True if plain else None), plain)


MIN_INTERVALS = 3


class Pace:
    """Estimates the time left in a phase from the times of its updates.

    Intervals between updates count only if nothing was compiled in them. The first interval does
    not count, because engines and sandboxes start in it. The estimate is available after
    MIN_INTERVALS intervals. It uses their mean and not their median, because the episodes of an
    evaluation finish in bursts, so that the median can be 0.
    """

    def __init__(self, done: int, now: float):
        self._done, self._since = done, now
        self._is_clean = False  # the first interval is left out
        self._intervals, self._steps, self._seconds = 0, 0, 0.0

    def compiled(self) -> None:
        """Notes that something is or was compiled in this interval."""
        self._is_clean = False

    def update(self, done: int, now: float) -> None:
        if done <= self._done:
            return
        if self._is_clean:
            self._intervals += 1
            self._steps += done - self._done
            self._seconds += now - self._since
        self._done, self._since, self._is_clean = done, now, True

    def seconds_left(self, total: int) -> float | None:
        """Estimates the seconds left; None if that is not known yet."""
        if self._intervals < MIN_INTERVALS:
            return None
        return self._seconds / self._steps * max(0, total - self._done)

"""How progress looks: pure functions from the state of a phase to lines and rich renderables."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_BLOCKS = "▁▂▃▄▅▆▇█"
SPARKLINE_WIDTH = 32
PANEL_WIDTH = 96


@dataclasses.dataclass(frozen=True)
class View:
    """One moment of a phase. seconds: of the whole run; figures: as in `progress.Figures`."""

    phase: str
    done: int
    total: int
    seconds: float
    phase_seconds: float
    figures: Mapping[str, float | None]
    success: Sequence[float]

    @property
    def seconds_left(self) -> float | None:
        """As if every step took as long as those before it; None before the first."""
        if not 0 < self.done <= self.total:
            return None
        return self.phase_seconds / self.done * (self.total - self.done)


def sparkline(rates: Sequence[float], width: int = SPARKLINE_WIDTH) -> str:
    """`rates` in [0, 1] as blocks on a fixed scale; longer histories are averaged to `width`."""
    if not rates:
        return ""
    columns = min(width, len(rates))
    edges = [i * len(rates) // columns for i in range(columns + 1)]
    means = [sum(rates[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round(min(1.0, max(0.0, mean)) * top)] for mean in means)


def duration(seconds: float) -> str:
    """Seconds for people: 8s, 3m05s, 2h10m."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    return f"{minutes // 60}h{minutes % 60:02d}m"


def plain_figures(figures: Mapping[str, float | None]) -> list[str]:
    """The figures that there are, in words."""
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
    """The live view; at most as wide as the terminal, and calm on a wide one."""
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
    # rich takes a total of None for "unknown" and pulses.
    total = view.total or None
    left = "" if view.seconds_left is None else f"{duration(view.seconds_left)} left"
    row.add_row(
        ProgressBar(total=total, completed=view.done, pulse=not view.done),
        f"{view.done:,}/{view.total:,}",
        left,
    )
    return row


def _figure_table(view: View) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True, min_width=len("staleness"))
    table.add_column(no_wrap=True)
    for label, value in _figure_rows(view):
        table.add_row(label, value)
    return table


def _figure_rows(view: View) -> list[tuple[str, Text]]:
    figures = view.figures
    rows = []
    if (success := figures["success"]) is not None:
        curve = (f"  {sparkline(view.success)}", "green")
        rows.append(("success", Text.assemble((f"{success:>6.1%}", "bold green"), curve)))
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

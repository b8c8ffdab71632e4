"""How the notebooks' pictures look: one set of colours and sizes, readable from the back row."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

INK, FAINT, GRID = "#1c2430", "#7b8794", "#e4e8ee"
GOOD, BAD = "#1f8a70", "#c8553d"  # positive and negative credit, and nothing else
LEVELS = {"token": "#8d6cab", "chunk": "#1f8a70", "sequence": "#d98e04"}
# Told apart also by those who see no red or no green (Okabe and Ito's).
SERIES = ("#009e73", "#0072b2", "#d55e00", "#cc79a7", "#e69f00", "#56b4e9")
CREDIT = LinearSegmentedColormap.from_list("credit", [BAD, "#ffffff", GOOD])


def use() -> None:
    plt.rcParams.update(
        {
            "figure.dpi": 110,
            "figure.constrained_layout.use": True,
            "font.size": 11,
            "axes.titlesize": 13,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.edgecolor": FAINT,
            "axes.labelcolor": INK,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": GRID,
            "text.color": INK,
            "xtick.color": FAINT,
            "ytick.color": FAINT,
            "legend.frameon": False,
        }
    )


def mark_chunks(axes: Axes, starts: list[int], end: int) -> None:
    """A number above each chunk of a trajectory's tokens, and a line where it begins."""
    top = axes.get_ylim()[1]
    for number, (start, stop) in enumerate(zip(starts, [*starts[1:], end]), 1):
        axes.axvline(start - 0.5, color=FAINT, linewidth=0.8, linestyle=":")
        axes.text((start + stop - 1) / 2, top, f"chunk {number}", ha="center", color=FAINT, size=9)


def legend_above(axes: Axes, **more: object) -> None:
    """The legend in one row at the right of the title, where it hides nothing."""
    handles, _ = axes.get_legend_handles_labels()
    places = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.2}
    axes.legend(ncols=len(handles), handlelength=1.4, columnspacing=1.2, **places, **more)


def log_ticks(axis: Axis) -> None:
    """Labels at 1, 2 and 5 times the powers of ten, so that a short axis has several."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    axis.set_minor_formatter(NullFormatter())

"""The tables for people."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ale_jax.monitor.text import one_line
from benchmarks.survival.sigterm import Stop
from benchmarks.survival.summary import BARS, Figures
from benchmarks.survival.trials import Trial

WIDTH = 200  # if the output is not a terminal
LINE_CHARS = 400


def show(trials: Sequence[Trial], stops: Sequence[Stop], figures: Figures) -> None:
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for table in (_faults(trials), _stops(stops), _bars(figures)):
        if table.row_count:
            console.print(table)


def _faults(trials: Sequence[Trial]) -> Table:
    heads = ("fault", "outcome", "seconds", "exit", "wrong", "last line of the terminal")
    table = Table(*heads, title="Faults")
    for each in trials:
        code = "runs" if each.code is None else str(each.code)
        # What a run prints may hold anything.
        told = escape(one_line(each.last_line, LINE_CHARS))
        wrong = escape("; ".join(each.notes))
        table.add_row(each.fault, each.outcome, f"{each.seconds:g}", code, wrong, told)
    return table


def _stops(stops: Sequence[Stop]) -> Table:
    heads = ("SIGTERM", "tried", "saved in time", "slowest, s")
    table = Table(*heads, title="SIGTERM")
    for when in dict.fromkeys(each.when for each in stops):
        of_kind = [each for each in stops if each.when == when]
        slowest = max(each.seconds for each in of_kind)
        right = sum(each.right for each in of_kind)
        table.add_row(when, str(len(of_kind)), str(right), f"{slowest:g}")
    return table


def _bars(figures: Figures) -> Table:
    table = Table("what", "from", "to", "measured", "holds", title="Bars")
    for bar in BARS:
        limits = ("" if each is None else f"{each:g}" for each in bar.limits(figures))
        value, holds = figures.get(bar.key), bar.holds(figures)
        measured = "not measured" if value is None else f"{value:g}"
        table.add_row(bar.what, *limits, measured, {None: "", True: "yes", False: "NO"}[holds])
    return table

"""The picture of a run's last steps: a row for the learner, and each engine, place and reward
worker."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from ale_jax.monitor.bubbles import PARTS, WORK, find_bubbles, laps_of, processes_of
from ale_jax.monitor.charts import Scale, Tick, nice_ticks
from ale_jax.monitor.timeline import (
    ENGINES,
    EPISODES,
    LEARNER,
    LENT,
    PROCESSES,
    REWARD_WORKERS,
    SAMPLING,
    VERDICT,
    WAITING,
    Lane,
    Span,
)

STEPS = 3
MAX_ROWS = {ENGINES: 8, EPISODES: 16, REWARD_WORKERS: 8}
MIN_WIDTH = 0.05  # percent; what is narrower is drawn as wide, and joined to its neighbour
LOW = " idle"  # of a style: a bubble, which is drawn low
BARS = {LEARNER: WORK, ENGINES: (SAMPLING, LENT), EPISODES: PARTS, REWARD_WORKERS: (VERDICT,)}

Interval = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Row:
    """A lane. paths: style and SVG path data, of a row that is 100 wide and 10 high."""

    label: str
    paths: tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True)
class Picture:
    """What the template draws. left_out: rows that are not shown. styles: those that occur."""

    rows: tuple[Row, ...]
    ticks: tuple[Tick, ...]
    left_out: int
    styles: tuple[str, ...]


def draw(spans: Sequence[Span]) -> Picture | None:
    """Returns the picture of the last STEPS steps; None if there is none."""
    if not (processes := processes_of(spans)):
        return None
    own = processes[-1]
    laps = laps_of(own)
    begun = [lap.start for lap in laps if lap.name == WAITING]
    ended = [lap.end for lap in laps if lap.name in WORK]
    if not begun or not ended or ended[-1] <= begun[-STEPS:][0]:
        return None
    start, end = begun[-STEPS:][0], ended[-1]
    scale = Scale(0.0, end - start)
    bars: dict[Lane, dict[str, list[Interval]]] = collections.defaultdict(dict)
    for lane, style, begin, stop in _bars(own):
        if stop > start and begin < end:
            left, right = (scale(min(max(at, start), end) - start) for at in (begin, stop))
            bars[lane].setdefault(style, []).append((left, right))
    shown = [lane for lane in sorted(bars, key=_order) if lane.number < _limit(lane)]
    rows = tuple(_row(lane, bars[lane]) for lane in shown)
    ticks = tuple(Tick(scale(at), f"{at:g} s") for at in nice_ticks(0.0, end - start, 6))
    styles = dict.fromkeys(style.removesuffix(LOW) for lane in shown for style in bars[lane])
    return Picture(rows, ticks, len(bars) - len(shown), tuple(styles))


def _bars(spans: Sequence[Span]) -> Iterator[tuple[Lane, str, float, float]]:
    for span in spans:
        if span.name in BARS[span.lane.process]:
            yield span.lane, span.name, span.start, span.end
    for bubble in find_bubbles(spans):
        yield bubble.lane, bubble.cause + LOW, bubble.start, bubble.end


def _row(lane: Lane, bars: dict[str, list[Interval]]) -> Row:
    return Row(lane.title, tuple((style, _path(style, each)) for style, each in bars.items()))


def _path(style: str, intervals: Iterable[Interval]) -> str:
    height = 3 if style.endswith(LOW) else 10
    parts = (
        f"M{left:g} 10h{right - left:g}v-{height}H{left:g}z" for left, right in _joined(intervals)
    )
    return "".join(parts)


def _joined(intervals: Iterable[Interval]) -> list[Interval]:
    joined: list[Interval] = []
    for left, right in sorted(intervals):
        right = max(right, left + MIN_WIDTH)
        if joined and left - joined[-1][1] < MIN_WIDTH:
            left = joined.pop()[0]
        joined.append((left, right))
    return joined


def _order(lane: Lane) -> tuple[int, int]:
    return PROCESSES.index(lane.process), lane.number


def _limit(lane: Lane) -> int:
    return MAX_ROWS.get(lane.process, 1)

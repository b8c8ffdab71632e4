"""Geometry of the report's charts: pure functions from numbers to positions in percent.

A plot is an SVG of 100 by 100 units that stretches with its box; its y axis points down. Labels are
text outside the SVG, positioned in percent. Therefore a chart fits any width, and its text never
shrinks.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

Point = tuple[float, float]

# More points than a wide screen can show would only make the file larger.
MAX_POINTS = 400


@dataclasses.dataclass(frozen=True)
class Tick:
    """A mark of an axis. percent: from the left, or from the top."""

    percent: float
    label: str


@dataclasses.dataclass(frozen=True)
class Scale:
    """Maps [low, high] linearly to [0, 100] percent; downwards for a y axis."""

    low: float
    high: float
    down: bool = False

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(100 * (1 - share if self.down else share), 2)


@dataclasses.dataclass(frozen=True)
class Line:
    """A curve of a chart. style: a class of the stylesheet; path: SVG path data."""

    label: str
    style: str
    path: str


@dataclasses.dataclass(frozen=True)
class Dot:
    """A measured rate with its interval: positions in percent, and the text of its tooltip."""

    style: str
    x: float
    y: float
    y_low: float
    y_high: float
    words: str


@dataclasses.dataclass(frozen=True)
class Band:
    """A shaded section of the x axis."""

    style: str
    label: str
    left: float
    width: float


@dataclasses.dataclass(frozen=True)
class Chart:
    """What the template draws. description: a text alternative for screen readers."""

    description: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    x_label: str
    lines: tuple[Line, ...] = ()
    dots: tuple[Dot, ...] = ()
    bands: tuple[Band, ...] = ()


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Returns about `count` round values inside [low, high], 1, 2 or 5 times a power of ten
    apart."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(m for m in (1, 2, 5, 10) if raw <= m * power * (1 + 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def padded_range(values: Sequence[float]) -> tuple[float, float]:
    """Returns a range around `values` with a small margin; never empty."""
    low, high = min(values), max(values)
    air = 0.06 * (high - low) or max(abs(high), 1.0) * 0.1
    return low - air, high + air


def moving_mean(points: Sequence[Point], window: int) -> list[Point]:
    """Replaces each y by the mean of the last `window` values, itself included."""
    smooth, total = [], 0.0
    for i, (x, y) in enumerate(points):
        total += y
        if i >= window:
            total -= points[i - window][1]
        smooth.append((x, total / min(i + 1, window)))
    return smooth


def thin(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """Returns at most `limit` points; if there are more, neighbours are averaged."""
    if len(points) <= limit:
        return list(points)
    edges = [i * len(points) // limit for i in range(limit + 1)]
    groups = [points[a:b] for a, b in itertools.pairwise(edges)]
    return [(_mean([x for x, _ in g]), _mean([y for _, y in g])) for g in groups]


def path(points: Sequence[Point], x_scale: Scale, y_scale: Scale) -> str:
    """Returns SVG path data through `points`; a single point becomes a visible dot."""
    places = [f"{x_scale(x):g} {y_scale(y):g}" for x, y in thin(points)]
    if len(places) == 1:
        return f"M{places[0]}h0.01"
    return "M" + "L".join(places)


def line_chart(
    points: Sequence[Point], label: str, description: str, x_range: tuple[float, float]
) -> Chart:
    """Returns a small chart of one metric over minutes, with a y axis of its own."""
    x_scale = Scale(*x_range)
    y_range = padded_range([y for _, y in points])
    y_scale = Scale(*y_range, down=True)
    return Chart(
        description=description,
        x_ticks=minute_ticks(x_scale, 4),
        y_ticks=tuple(Tick(y_scale(v), f"{v:,g}") for v in nice_ticks(*y_range, 5)),
        x_label="minutes",
        lines=(Line(label, "series-a", path(points, x_scale, y_scale)),),
    )


def minute_ticks(x_scale: Scale, count: int) -> tuple[Tick, ...]:
    """Ticks of a time axis that is scaled in minutes."""
    return tuple(Tick(x_scale(v), f"{v:g}") for v in nice_ticks(x_scale.low, x_scale.high, count))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

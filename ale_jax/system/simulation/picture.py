"""A picture of predictions: how fast each schedule is, how far off that may be, and what waits."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from pathlib import Path

from ale_jax.files import write_atomically
from ale_jax.monitor.charts import nice_ticks
from ale_jax.system.simulation.predict import Check, places_of
from ale_jax.system.simulation.search import Candidate
from ale_jax.system.simulation.tables import STEPS, shown, worst

# Lengths in pixels. What waits is drawn below the speed, as two thin bars.
LABELS, CHART, ROW, TOP, MARGIN = 250, 480, 34, 44, 16
SPEED, LEARNER, PLACES = "#4477aa", "#ee6677", "#ccbb44"
LEGEND = (
    ("steps per hour", SPEED),
    ("learner idle, share of the width", LEARNER),
    ("places idle, share of the width", PLACES),
)


def write_picture(path: Path, candidates: Sequence[Candidate], checks: Sequence[Check]) -> None:
    """Writes the schedules that the table shows, as SVG: the config, and then the fastest of the
    others. checks: whose largest error the whiskers are; none without them. OSError if it cannot
    be written."""
    write_atomically(path, ["\n".join(_svg(shown(candidates), checks)).encode()])


def _svg(rows: Sequence[Candidate], checks: Sequence[Check]) -> Iterator[str]:
    error = worst(checks) if checks else 0.0
    most = max(STEPS.of(each.outcome) for each in rows) * (1.0 + error)
    width, height = LABELS + CHART + 2 * MARGIN, TOP + ROW * len(rows) + 44
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        'font-family="sans-serif" font-size="12">'
    )
    yield f'<rect width="{width}" height="{height}" fill="white"/>'
    for number, (text, colour) in enumerate(LEGEND):
        left = MARGIN + number * width // len(LEGEND)
        yield _bar(left, 14, 10, 10, colour) + _text(left + 16, 23, text)
    bottom = TOP + ROW * len(rows)
    for tick in nice_ticks(0.0, most, 6):
        x = LABELS + CHART * tick / most
        yield f'<path d="M{x:.1f} {TOP}V{bottom}" stroke="#ddd"/>'
        yield _text(x, bottom + 16, f"{tick:g}", "middle")
    yield _text(LABELS + CHART / 2, bottom + 34, _axis(checks), "middle")
    for number, each in enumerate(rows):
        yield from _row(each, TOP + ROW * number, CHART / most, error)
    yield "</svg>\n"


def _axis(checks: Sequence[Check]) -> str:
    known = f"± {worst(checks):.1%}" if checks else "error unknown"
    return f"{STEPS.name}, predicted, {known}; the first row is the config"


def _row(candidate: Candidate, top: float, scale: float, error: float) -> Iterator[str]:
    """scale: pixels of a step per hour."""
    outcome = candidate.outcome
    steps = STEPS.of(outcome)
    rl, rollout = candidate.config.rl, candidate.config.rollout
    extra = f", {rl.redundant_groups} redundant groups" * bool(rl.redundant_groups)
    label = f"alpha {rl.alpha:g}, {places_of(candidate.config)} places{extra}"
    yield _text(LABELS - 8, top + 15, label, "end")
    if rollout.engine_devices:
        devices = f"{rollout.engine_devices} engine devices, {rollout.lent_engines} lent engines"
        yield _text(LABELS - 8, top + 28, devices, "end")
    yield _bar(LABELS, top + 4, steps * scale, 14, SPEED)
    if error:
        low, high = (LABELS + scale * steps * (1.0 + sign * error) for sign in (-1, 1))
        yield f'<path d="M{low:.1f} {top + 11:.1f}H{high:.1f}" stroke="black" stroke-width="2"/>'
    yield _bar(LABELS, top + 19, CHART * (1.0 - outcome.learner_busy), 4, LEARNER)
    yield _bar(LABELS, top + 24, CHART * (1.0 - outcome.places_busy), 4, PLACES)


def _bar(left: float, top: float, width: float, height: float, colour: str) -> str:
    wide = max(width, 0.0)  # rounding may leave -0
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{height}" fill="{colour}"/>'
    )


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'

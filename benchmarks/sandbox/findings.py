"""The kinds of findings of the benchmark, and functions for timing."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Awaitable, Callable

import numpy as np

PERCENTILES = (50, 95, 99)


@dataclasses.dataclass(frozen=True)
class Sample:
    """Repeated measurements of one quantity. key: in the JSON, with the unit. what: in tables."""

    key: str
    what: str
    values: tuple[float, ...]

    def percentile(self, percent: int) -> float:
        return float(np.percentile(self.values, percent))

    def figures(self) -> dict[str, float]:
        return {f"{self.key}_p{each}": round(self.percentile(each), 4) for each in PERCENTILES}


@dataclasses.dataclass(frozen=True)
class Figure:
    """One number: a count, or a ratio."""

    key: str
    what: str
    value: float | int


@dataclasses.dataclass(frozen=True)
class Trial:
    """An attack that was tried. seen: the evidence of what stopped it, or what it achieved.

    neighbour_ratio: a neighbour's p95 during the attack, relative to before it; None if the attack
    was too short to measure it.
    """

    attack: str
    kind: str
    stopped_by: str
    survived: bool
    seen: str
    neighbour_ratio: float | None = None


Finding = Sample | Figure | Trial


def say(text: str) -> None:
    """Prints progress to stderr."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def timed_ms(act: Callable[[], object], repetitions: int) -> tuple[float, ...]:
    """Milliseconds of each call, after a first call that is not counted."""
    act()
    return tuple(_ms(act) for _ in range(repetitions))


async def timed_ms_later(
    act: Callable[[], Awaitable[object]], repetitions: int
) -> tuple[float, ...]:
    """Like `timed_ms`, for coroutines."""
    await act()
    times = []
    for _ in range(repetitions):
        began = time.perf_counter()
        await act()
        times.append(1e3 * (time.perf_counter() - began))
    return tuple(times)


def _ms(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return 1e3 * (time.perf_counter() - began)

"""What the updates of runs say: how long one takes alone, how episodes slow it down, and how much
faster it is with more devices."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ale_jax.system.simulation.observed import RunPart, TimedStep, playing, tells

SURE = 2.0  # standard errors that an effect must have to be believed
# One place for all would make n episodes n times slower, and nothing is worse than that.
SLOWEST = 1.0
LEAST_UPDATES = 4  # on a number of devices that is to tell something
VAGUE = 0.1  # of the speed on twice the devices: one that may be off by more is not told

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Scaling:
    """How the speed of an update follows from its devices: as their power. doubled: how many times
    faster it is on twice as many. least, most: devices for which that is known.

    >>> Scaling(1.5).faster(2, 8)
    2.25
    """

    doubled: float
    least: float = 1.0
    most: float = math.inf

    def __post_init__(self) -> None:
        if not 0.0 < self.doubled < math.inf:
            raise ValueError(
                f"--update-speedup={self.doubled:g} must be above 0: with twice the devices, 2 is "
                "twice as fast"
            )

    def faster(self, devices: int, others: int) -> float:
        """Returns how many times faster an update is on `others` devices."""
        return float(self.doubled ** math.log2(others / devices))

    def tells(self, *devices: int) -> bool:
        """Returns whether updates on these numbers of devices are known, or lie between known
        ones."""
        return all(self.least <= each <= self.most for each in devices)


# What is taken where nothing is told. It is no basis for a choice.
PROPORTIONAL = Scaling(2.0, math.inf, -math.inf)


@dataclasses.dataclass(frozen=True)
class Updates:
    """seconds: of an update alone on `learners` devices; 0 devices if it is unknown how many. by
    episodes: `Crowding.learner`; None if it could not be told."""

    seconds: float
    learners: int
    by_episodes: float | None
    scaling: Scaling


def updates_of(parts: Sequence[RunPart], given: Scaling | None = None) -> Updates:
    """Returns what the updates of runs say.

    given: what they do not need to say. ValueError if they say it, or if they were made on other
    numbers of devices without telling what these are worth.
    """
    steps = [step for part in parts for step in part.steps]
    number = np.concatenate([_beside(part) for part in parts])
    found = measured(steps, number)
    if found and given:
        raise ValueError(
            f"--update-speedup={given.doubled:g} has no use with runs that say it themselves: "
            f"{found.doubled:.3g}. Leave it out"
        )
    scaling, learners = found or given or PROPORTIONAL, steps[0].learners
    if (own := {step.learners for step in steps}) != {learners} and scaling is PROPORTIONAL:
        raise ValueError(
            f"runs in which {' and '.join(map(str, sorted(own)))} devices learn do not tell how "
            "much faster more are: give --update-speedup, or name longer runs"
        )
    seconds = np.array([_on(step, learners, scaling) for step in steps])
    alone, by_episodes = _alone(seconds, number)
    return Updates(alone, learners, by_episodes, scaling)


def _beside(part: RunPart) -> Floats:
    """Returns the mean number of episodes in progress in each update."""
    taken, published = (
        np.array([getattr(step.times, name) for step in part.steps])
        for name in ("taken", "published")
    )
    return playing(part.times).mean(taken, published)


def _on(step: TimedStep, learners: int, scaling: Scaling) -> float:
    """Returns the seconds that an update would have taken on so many devices of the learner."""
    return step.update_seconds * (scaling.faster(learners, step.devices) if learners else 1.0)


def measured(steps: Sequence[TimedStep], number: Floats) -> Scaling | None:
    """Returns how much faster updates with more devices were, be they lent; None if the steps do
    not tell.

    Least squares of the logarithms of seconds, by that of the devices and by the `number` of
    episodes in progress: updates are lent devices while few are.
    """
    counts = Counter(step.devices for step in steps)
    known = [n for n, times in counts.items() if n and times >= LEAST_UPDATES]
    counted = np.array([step.devices in known for step in steps])
    if len(known) < 2:
        return None
    devices = np.log2([max(step.devices, 1) for step in steps])[counted]
    columns = [np.ones_like(devices), devices]
    if tells(number[counted]):
        columns.append(number[counted])
    causes = np.stack(columns, axis=1)
    seconds = np.log2([step.update_seconds for step in steps])[counted]
    effects, *_ = np.linalg.lstsq(causes, seconds, rcond=None)
    wrong = seconds - causes @ effects
    variance = wrong @ wrong / max(len(seconds) - len(columns), 1)
    error = math.sqrt(variance * np.linalg.pinv(causes.T @ causes)[1, 1])
    if 2.0 ** (SURE * error) - 1.0 > VAGUE:
        return None
    return Scaling(float(2.0 ** -effects[1]), min(known), max(known))


def _alone(seconds: Floats, number: Floats) -> tuple[float, float | None]:
    """Returns the seconds of an update with no episode in progress, and `Crowding.learner`."""
    mean, level = float(seconds.mean()), float(number.mean())
    # A line through two points has no error.
    if len(number) < 3 or not tells(number):
        return mean, None
    (slope, _), covariance = np.polyfit(number, seconds, deg=1, cov=True)
    if slope <= SURE * np.sqrt(covariance[0, 0]):
        return mean, None
    # mean = alone * (1 + learner * level), and learner is at most SLOWEST.
    alone = max(mean - float(slope) * level, mean / (1.0 + SLOWEST * level))
    return alone, (mean / alone - 1.0) / level

"""What a real run came to, from its times, in the figures of a simulated one."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ale_jax.monitor.times import NO_GROUP, AttemptTimes, StepTimes, Times
from ale_jax.status import Status
from ale_jax.system.simulation.engines import ONE, Engines

TOLD = 0.1  # a number that varies by less than this share of its mean tells nothing of its effect
BATCHES = 10
COMPILED_SHARE = 0.05  # of a step's time: one that compiled for longer says nothing of others


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a simulated run came to. seconds_per_step: mean. places_busy: share of the places' time
    in which they played. learner_busy: share of the time in which it did not wait for groups.
    mean_age: in versions, of the groups that were trained on. stale_share: dropped as too old, of
    those that were trained on or dropped. episodes: that were delivered. lent_share: of the time of
    updates, in which engines had lent their devices. error: standard error of seconds_per_step, as
    a share of it; infinite for one step."""

    seconds_per_step: float
    places_busy: float
    learner_busy: float
    mean_age: float
    stale_share: float
    episodes: int
    lent_share: float = 0.0
    error: float = math.inf


class Level:
    """How many of some intervals of time are in progress, at each moment."""

    def __init__(self, intervals: Iterable[tuple[float, float]]):
        """intervals: (begin, end), in seconds."""
        times_N2 = np.array([*intervals] or np.empty((0, 2)), dtype=float)
        times = times_N2.T.reshape(-1)
        changes = np.repeat([1, -1], len(times_N2))
        order = np.argsort(times, kind="stable")
        self._times = times[order]
        areas = np.cumsum(changes[order])[:-1] * np.diff(self._times)
        self._area = np.concatenate([[0.0], np.cumsum(areas)])[: len(times)]

    def mean(self, begun: NDArray[np.float64], ended: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the mean number in each of the intervals from `begun` to `ended`."""
        if not len(self._times):
            return np.zeros_like(begun)
        area = np.interp(ended, self._times, self._area) - np.interp(begun, self._times, self._area)
        return np.asarray(area / np.maximum(ended - begun, 1e-9))


def tells(values: NDArray[np.float64]) -> bool:
    """Returns whether an effect of these values can be told from a constant."""
    return bool(np.std(values) >= TOLD * max(float(np.mean(values)), TOLD))


@dataclasses.dataclass(frozen=True)
class TimedStep:
    """A step, from the publication of the one before, `begun`, until its own. learners: devices
    that only learn, or do both; 0 if it is unknown how many. lent: devices that others are, if
    they are lent."""

    times: StepTimes
    begun: float
    learners: int = 0
    lent: int = 0

    @property
    def pause(self) -> float:
        """Seconds until the learner looked for groups."""
        return self.times.taken - self.times.waited - self.begun

    @property
    def update_seconds(self) -> float:
        return self.times.published - self.times.taken

    @property
    def devices(self) -> int:
        """Devices of the update, with those that were lent for most of it; 0 if unknown."""
        is_lent = self.learners and self.times.lent > self.update_seconds / 2
        return self.learners + (self.lent if is_lent else 0)

    @property
    def ended(self) -> float:
        return self.times.published

    @property
    def seconds(self) -> float:
        return self.ended - self.begun


class RunPart(NamedTuple):
    """Some steps of a run. crowd: as of `Sides`, while devices are lent."""

    times: Times
    steps: Sequence[TimedStep]
    engines: Engines = ONE
    crowd: float = 1.0


def timed_steps(times: Times, beginning: float | None = None) -> list[TimedStep]:
    """Returns the steps whose time says something of others: none that compiled, and not the first
    one, unless its beginning is known."""
    began = [step.published for step in times.steps]
    first = [] if beginning is None else [beginning]
    steps = times.steps if first else times.steps[1:]
    timed = map(TimedStep, steps, itertools.chain(first, began))
    return [each for each in timed if each.times.compiled <= COMPILED_SHARE * each.seconds]


def playing(times: Times, only_training: bool = False) -> Level:
    """Returns how many attempts were in progress."""
    return Level(
        (each.begun, each.ended)
        for each in times.attempts
        if not only_training or each.group != NO_GROUP
    )


def observed(times: Times, steps: Sequence[TimedStep], places: int) -> Outcome:
    """Returns what these steps of a run with `places` places came to."""
    seconds = sum(step.seconds for step in steps)
    begun, ended = (np.array([getattr(s, name) for s in steps]) for name in ("begun", "ended"))
    busy = playing(times, only_training=True).mean(begun, ended) @ (ended - begun)
    updates = sum(step.update_seconds for step in steps)
    ages = [age for step in steps for age in step.times.ages]
    stale = sum(step.times.stale for step in steps)
    return Outcome(
        seconds_per_step=seconds / len(steps),
        places_busy=float(busy) / (seconds * places),
        learner_busy=1.0 - sum(step.times.waited for step in steps) / seconds,
        mean_age=sum(ages) / len(ages),
        stale_share=stale / (stale + len(ages)),
        episodes=sum(each.status != Status.CANCELLED for each in ended_within(times, steps)),
        lent_share=sum(step.times.lent for step in steps) / updates if updates else 0.0,
        error=mean_error([step.seconds for step in steps]),
    )


def mean_error(seconds: Sequence[float]) -> float:
    """Returns the standard error of the mean, as a share of it, of steps in their order. A slow
    step may make the next ones slow or fast, so means of BATCHES parts are compared; infinite for
    one step."""
    means = [float(np.mean(part)) for part in np.array_split(seconds, BATCHES) if len(part)]
    if len(means) < 2:
        return math.inf
    return float(np.std(means, ddof=1) / math.sqrt(len(means)) / np.mean(means))


def ended_within(times: Times, steps: Sequence[TimedStep]) -> list[AttemptTimes]:
    """Returns the attempts at episodes of training that ended in these steps, also because nobody
    wanted them any more."""
    begun = [step.begun for step in steps]

    def is_within(moment: float) -> bool:
        step = bisect.bisect_left(begun, moment) - 1
        return step >= 0 and moment <= steps[step].ended

    return [each for each in times.attempts if each.group != NO_GROUP and is_within(each.ended)]

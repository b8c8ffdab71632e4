"""How much faster updates are with more devices is told by those that had more, or not at all."""

import dataclasses
import random

import numpy as np
import pytest

from ale_jax.monitor.times import StepTimes, Times
from ale_jax.records import TRAIN, EpisodeKey, Task
from ale_jax.system.simulation.engines import Engines
from ale_jax.system.simulation.fit import fitted
from ale_jax.system.simulation.observed import RunPart, TimedStep, timed_steps
from ale_jax.system.simulation.run import Setup, simulated
from ale_jax.system.simulation.updates import PROPORTIONAL, Scaling, measured, updates_of
from ale_jax.system.simulation.world import Course, Crowding


def step(seconds, learners=2, lent=0, share=1.0):
    """share: of the update, for which the lent devices were there."""
    times = StepTimes(1, 0.0, 100.0, 100.0 + seconds, 0.0, (0,), 0, lent=seconds * share)
    if not lent:
        times = dataclasses.replace(times, lent=0.0)
    return TimedStep(times, 90.0, learners, lent)


def test_lent_devices_tell_what_more_devices_are_worth():
    """Twice the devices are 1.5 times as fast, and each episode in progress costs a tenth. Fewer
    are in progress where devices are lent, which is no merit of these."""
    number = np.array([8.0, 9.0, 10.0, 11.0, 1.0, 2.0, 3.0, 4.0])
    speeds = [1.0] * 4 + [1.5] * 4
    steps = [
        step(12.0 * 2.0 ** (0.1 * n) / speed, lent=2 * (speed > 1.0))
        for n, speed in zip(number, speeds, strict=True)
    ]
    found = measured(steps, number)
    assert found.doubled == pytest.approx(1.5)
    assert (found.least, found.most) == (2, 4)
    assert found.tells(3) and not found.tells(2, 5) and not found.tells(1)
    assert found.faster(4, 2) == pytest.approx(1 / 1.5)


def test_too_few_or_too_different_updates_tell_nothing():
    own, lent = [step(12.0)] * 4, [step(8.0, lent=2)] * 4
    even = np.zeros(8)
    assert measured([*own, *lent], even).doubled == pytest.approx(1.5)
    assert measured([*own, *lent[:3]], even[:7]) is None
    assert measured([*own, *[step(8.0, lent=2, share=0.4)] * 4], even) is None, "mostly not lent"
    unknown = [dataclasses.replace(each, learners=0) for each in (*own, *lent)]
    assert measured(unknown, even) is None
    chance = random.Random(0)
    noisy = [step(12.0 * chance.uniform(0.5, 2.0), lent=lent) for lent in (0, 2) * 4]
    assert measured(noisy, even) is None


def test_runs_with_other_splits_tell_it_or_need_it():
    def part(seconds, learners, number):
        return RunPart(Times((), ()), [step(seconds, learners)] * number)

    found = updates_of([part(12.0, 2, 5), part(8.0, 4, 5)])
    assert (found.seconds, found.learners) == (pytest.approx(12.0), 2)
    assert dataclasses.astuple(found.scaling) == (pytest.approx(1.5), 2, 4)
    few = [part(12.0, 2, 5), part(8.0, 4, 3)]
    with pytest.raises(ValueError, match=r"runs in which 2 and 4 devices learn do not tell"):
        updates_of(few)
    assert updates_of(few, Scaling(1.5)).seconds == pytest.approx(12.0)
    with pytest.raises(ValueError, match=r"--update-speedup=1.5 has no use .* themselves: 1.5"):
        updates_of([part(12.0, 2, 5), part(8.0, 4, 5)], Scaling(1.5))
    assert updates_of([part(12.0, 2, 5)]).scaling is PROPORTIONAL


def test_what_engines_wait_for_each_other_is_none_of_an_episode():
    """Two engines that dispatch for half of their time are a quarter slower."""
    engines = Engines(2, dispatch=0.5)
    setup = Setup(2, 2, 4, 2.0, crowding=Crowding(engines=engines))
    times = simulated(setup, lambda key, chance: Course(10.0), 8, 0)
    part = RunPart(times, timed_steps(times))
    drawn = [fitted([each]).course for each in (part, part._replace(engines=engines))]
    key, chance = times.attempts[0], random.Random(0)
    assert [each(key_of(key), chance).seconds for each in drawn] == pytest.approx([12.5, 10.0])


def key_of(attempt):
    return EpisodeKey(TRAIN, attempt.group, 0, Task("simulated", attempt.group, TRAIN))

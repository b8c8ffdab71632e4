"""What a run's times say leads to the run that they are of, and to others."""

import dataclasses
import math
import random

import pytest

from ale_jax.monitor.times import Times
from ale_jax.records import TRAIN, EpisodeKey, Task
from ale_jax.status import Status
from ale_jax.system.simulation.fit import fitted
from ale_jax.system.simulation.observed import RunPart, timed_steps
from ale_jax.system.simulation.run import Setup, simulate, simulated
from ale_jax.system.simulation.world import Course, Crowding

CROWDING = Crowding(episodes=0.08, update=0.5, learner=0.1)
WORLD = Setup(4, 4, 12, 6.0, pause_seconds=0.5, crowding=CROWDING)


def course(key, chance):
    """Members of a group are alike, and 3 % of the attempts lose their sandbox."""
    if chance.random() < 0.03:
        return Course(3.0, Status.SANDBOX_LOST, None)
    return Course(4.0 * (1 + key.group % 5) * math.exp(chance.gauss(0.0, 0.2)))


def sized(times):
    """Attempts that took longer had more turns, as far as that is not because others played."""
    attempts = tuple(
        dataclasses.replace(each, turns=1 + each.group % 5, tokens=40) for each in times.attempts
    )
    return Times(attempts, times.steps)


def part_of(setup, steps=80, seed=0):
    times = sized(simulated(setup, course, steps, seed))
    return RunPart(times, timed_steps(times))


def predicted(setup, costs):
    setup = dataclasses.replace(
        setup,
        update_seconds=costs.update_seconds,
        pause_seconds=costs.pause_seconds,
        crowding=costs.crowding,
    )
    return simulate(setup, costs.course, 150, 7, begin=10).seconds_per_step


def test_two_schedules_tell_what_a_third_one_takes():
    costs = fitted([part_of(WORLD), part_of(dataclasses.replace(WORLD, alpha=1.0))])
    assert costs.unknown == () and costs.most_playing == WORLD.places
    assert costs.update_seconds == pytest.approx(6.0, rel=0.1)
    assert costs.pause_seconds == pytest.approx(0.5)
    assert costs.crowding.episodes == pytest.approx(0.08, rel=0.4)
    for change in ({"places": 6}, {"alpha": 2.0}, {"stragglers": "drop", "redundant_groups": 1}):
        other = dataclasses.replace(WORLD, **change)
        truth = simulate(other, course, 150, 3, begin=10).seconds_per_step
        assert predicted(other, costs) == pytest.approx(truth, rel=0.1), change


def test_what_was_dropped_for_being_slow_is_slow_where_it_is_waited_for():
    def slow(key, chance):
        return Course(chance.uniform(4.0, 6.0) * (4.0 if chance.random() < 0.05 else 1.0))

    drops = dataclasses.replace(
        WORLD, alpha=2.0, places=20, stragglers="drop", redundant_groups=1, crowding=Crowding()
    )
    times = simulated(drops, slow, 200, 0)
    costs = fitted([RunPart(times, timed_steps(times))])
    assert "of the attempts were cancelled: how long these would have taken" in costs.unknown[-1]
    for setup in (drops, dataclasses.replace(drops, stragglers="wait", redundant_groups=0)):
        truth = simulate(setup, slow, 150, 3, begin=10).seconds_per_step
        assert predicted(setup, costs) == pytest.approx(truth, rel=0.15), setup.stragglers


def test_what_the_times_do_not_tell_is_said():
    costs = fitted([part_of(WORLD)])
    assert len(costs.unknown) == 2, "no update is made beside episodes in a synchronous run"
    assert costs.tells_places and costs.crowding.update == costs.crowding.learner == 0.0
    ahead = fitted([part_of(dataclasses.replace(WORLD, alpha=2.0, places=4))])
    assert not ahead.tells_places and ahead.crowding.episodes == 0.0
    assert any("equally many episodes" in each for each in ahead.unknown)


def test_those_that_are_slow_by_themselves_do_not_tell_that_others_slow_them_down():
    def alone(key, chance):
        return Course(chance.lognormvariate(2.0, 0.5))

    at_once = dataclasses.replace(WORLD, places=16, crowding=Crowding())
    times = simulated(at_once, alone, 40, 0)
    costs = fitted([RunPart(times, timed_steps(times))])
    assert not costs.tells_places and costs.crowding == Crowding()
    truth = simulate(at_once, alone, 100, 3, begin=10).seconds_per_step
    assert predicted(at_once, costs) == pytest.approx(truth, rel=0.1)


def test_what_failed_fails_as_often_and_members_stay_together():
    costs = fitted([part_of(WORLD, steps=200)])
    task = Task("simulated", 0, TRAIN)

    class Chance(random.Random):
        """Draws a failure, or none."""

        def __init__(self, value):
            super().__init__(0)
            self.random = lambda: value

    failed = costs.course(EpisodeKey(TRAIN, 0, 0, task), Chance(0.025))
    assert failed.status == Status.SANDBOX_LOST and failed.reward is None
    chance, apart = Chance(0.5), []
    for group in range(40):
        keys = [EpisodeKey(TRAIN, group, member, task) for member in range(4)]
        seconds = [costs.course(key, chance).seconds for key in keys]
        apart.append(max(seconds) / min(seconds))
    assert sorted(apart)[20] < 2.0, "alone, groups are up to five times apart"


def test_without_a_result_nothing_is_told():
    lost = simulated(WORLD, lambda key, chance: Course(2.0, Status.CALL_LOST, None), 0, 0)
    with pytest.raises(ValueError, match="no episode of these steps had a result"):
        fitted([RunPart(lost, [])])

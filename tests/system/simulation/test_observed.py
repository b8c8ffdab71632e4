"""What a run came to is counted from its times as by hand."""

import math

import numpy as np
import pytest

from ale_jax.monitor.times import NO_GROUP, AttemptTimes, StepTimes, Times
from ale_jax.status import Status
from ale_jax.system.simulation.observed import (
    Level,
    ended_within,
    mean_error,
    observed,
    timed_steps,
)


def _attempt(begun, ended, status=Status.FINISHED, group=0):
    return AttemptTimes(begun, ended, status, group, 1, 10)


#          step 1   step 2 (compiles)   step 3             step 4
# seconds  0-10     10-20               20-30              30-40
STEPS = tuple(
    StepTimes(n, 4.0, 10.0 * n - 3, 10.0 * n, compiled, (0, 1), stale)
    for n, compiled, stale in ((1, 0.0, 0), (2, 6.0, 0), (3, 0.4, 1), (4, 0.0, 0))
)
TIMES = Times(
    (
        _attempt(15.0, 25.0),
        _attempt(20.0, 40.0, group=1),
        _attempt(20.0, 30.0, Status.CANCELLED, 2),
        _attempt(20.0, 40.0, group=NO_GROUP),  # an evaluation, which takes no place of training
        _attempt(1.0, 12.0),
    ),
    STEPS,
)


def test_a_level_is_the_mean_number_in_progress():
    level = Level([(0.0, 4.0), (2.0, 4.0), (2.0, 3.0)])
    begun, ended = np.array([0.0, 2.0, 3.0, -2.0, 5.0]), np.array([4.0, 3.0, 4.0, 2.0, 9.0])
    assert level.mean(begun, ended) == pytest.approx([7 / 4, 3.0, 2.0, 0.5, 0.0])
    assert Level([]).mean(begun, ended) == pytest.approx([0.0] * 5)


def test_steps_that_compiled_or_whose_beginning_is_unknown_do_not_count():
    assert [step.times.step for step in timed_steps(TIMES)] == [3, 4]
    known = timed_steps(TIMES, beginning=0.0)
    assert [(step.times.step, step.begun) for step in known] == [(1, 0.0), (3, 20.0), (4, 30.0)]
    assert known[1].pause == pytest.approx(3.0)  # of 10 s, 4 were waited and 3 learned


def test_the_error_of_a_mean_is_that_of_means_of_parts():
    assert mean_error([3.0]) == math.inf and mean_error([3.0] * 40) == 0.0
    # The parts of two steps have the means 1, 3, 1, ...: a standard deviation of sqrt(10 / 9).
    steps = [0.5, 1.5, 2.0, 4.0] * 5
    assert mean_error(steps) == pytest.approx(math.sqrt(10 / 9) / math.sqrt(10) / 2.0)


def test_a_run_is_counted_in_the_steps_that_count():
    found = observed(TIMES, timed_steps(TIMES), places=4)
    assert found.seconds_per_step == pytest.approx(10.0)
    assert found.places_busy == pytest.approx((5 + 20 + 10) / (20 * 4))
    assert found.learner_busy == pytest.approx(0.6)
    assert (found.mean_age, found.stale_share, found.episodes) == (0.5, 1 / 5, 2)


def test_attempts_end_in_the_step_that_they_end_in():
    assert ended_within(TIMES, timed_steps(TIMES)) == list(TIMES.attempts[:3])

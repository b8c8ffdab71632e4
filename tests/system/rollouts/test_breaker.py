"""When attempts begin: after a back-off, and not while the system fails all of them."""

import random

import pytest

from ale_jax.config.engine import Sampling
from ale_jax.errors import RolloutsFailed
from ale_jax.records import EpisodeKey, RolloutRequest, Task
from ale_jax.status import Status
from ale_jax.system.rollouts.breaker import MAX_BACKOFF_S, Breaker, Job, RetryQueue, backoff
from tests.rows import each_row

LOST = "sandbox_lost: gone"


def task(number):
    return Task("trail", number, "train")


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


class Rig:
    def __init__(self, outage_seconds=600.0):
        self.clock, self.events = Clock(), []
        record = lambda kind, detail: self.events.append((kind, detail))  # noqa: E731
        self.breaker = Breaker(outage_seconds, record, self.clock)

    def end(self, number, failure="", silent=0.0):
        """An attempt at task `number` begins and ends. silent: seconds since its last sign."""
        is_trial = self.breaker.begin()
        self.breaker.note(task(number), failure, is_trial, self.clock.now - silent)
        return is_trial

    def open(self):
        for number in range(4):
            self.end(number, LOST)
        assert self.breaker.is_open


def test_four_failures_of_several_tasks_pause_everything():
    rig = Rig()
    for number in range(3):
        rig.end(number, LOST)
    assert rig.breaker.may_begin and not rig.events
    rig.end(3, LOST)
    assert not rig.breaker.may_begin
    ((kind, detail),) = rig.events
    assert kind == "episodes_paused"
    assert detail == f"4 of the last 4 attempts failed; the last one ended with {LOST}"


def test_one_task_that_always_fails_pauses_nothing():
    rig = Rig()
    for _ in range(20):
        rig.end(13, LOST)
    assert not rig.breaker.is_open


def test_fewer_failures_than_successes_pause_nothing():
    rig = Rig()
    for number in range(30):
        rig.end(number, LOST if number % 3 == 0 else "")
    assert not rig.breaker.is_open


def test_a_few_that_hang_pause_nothing_when_all_others_have_ended():
    rig = Rig()
    for number in range(100):
        rig.clock.now += 1.0
        rig.end(number)
    rig.clock.now += 300.0
    for number in range(100, 120):
        rig.end(number, LOST, silent=350.0)
    assert not rig.breaker.is_open


def test_all_that_hang_since_the_same_moment_pause_everything():
    rig = Rig()
    for number in range(100):
        rig.clock.now += 1.0
        rig.end(number)
    rig.clock.now += 300.0
    for number in range(100, 120):
        if not rig.breaker.is_open:
            rig.end(number, LOST, silent=300.0 + number % 3)
    assert rig.breaker.is_open


def test_trials_come_one_at_a_time_after_pauses_that_double():
    rig = Rig()
    rig.open()
    for pause in (1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
        rig.clock.now += pause - 0.01
        assert not rig.breaker.may_begin
        rig.clock.now += 0.01
        is_trial = rig.breaker.begin()
        assert is_trial and not rig.breaker.may_begin  # until it is over
        rig.breaker.note(task(1), LOST, is_trial, rig.clock.now)
    assert "30 s" in rig.breaker.state() and LOST in rig.breaker.state()


def test_a_trial_that_succeeds_ends_the_pause_and_forgets_the_failures():
    rig = Rig()
    rig.open()
    rig.clock.now += 1.0
    assert rig.end(9)
    assert not rig.breaker.is_open and rig.breaker.state() == ""
    assert rig.events[-1] == ("episodes_resumed", "after a pause of 1s")
    for number in range(3):
        rig.end(number, LOST)
    assert not rig.breaker.is_open


def test_failures_of_what_began_before_the_pause_do_not_prolong_it():
    rig = Rig()
    rig.open()
    rig.breaker.note(task(7), LOST, False, rig.clock.now)
    rig.clock.now += 1.0
    assert rig.breaker.may_begin


def test_a_trial_without_a_result_is_followed_by_another():
    rig = Rig()
    rig.open()
    rig.clock.now += 1.0
    rig.breaker.void(rig.breaker.begin())
    assert rig.breaker.may_begin


def test_an_outage_ends_the_run_with_what_failed_last():
    rig = Rig(outage_seconds=60.0)
    rig.open()
    rig.clock.now += 60.0
    rig.breaker.check()
    rig.clock.now += 0.1
    with pytest.raises(RolloutsFailed, match=r"for 1m00s no episode could be played.*gone"):
        rig.breaker.check()


@each_row("failures, low, high", [(1, 0.125, 0.25), (3, 0.5, 1.0), (99, 15.0, MAX_BACKOFF_S)])
def test_back_off_doubles_up_to_a_cap_and_varies(failures, low, high):
    chance = random.Random(0)
    drawn = [backoff(failures, chance) for _ in range(200)]
    assert low <= min(drawn) < max(drawn) <= high
    assert max(drawn) - min(drawn) > 0.4 * (high - low)


def job(group, rejected=()):
    return Job(RolloutRequest(EpisodeKey("train", group, 0, task(group))), Sampling(), rejected)


def test_retries_come_when_their_time_has_come():
    clock = Clock()
    queue = RetryQueue(clock)
    queue.put(job(1), 2.0)
    queue.put(job(2), 1.0)
    queue.put(job(3), 1.0)
    assert queue.next_ready() is None and len(queue) == 3
    clock.now += 1.0
    assert [queue.next_ready(), queue.next_ready(), queue.next_ready()] == [job(2), job(3), None]
    clock.now += 1.0
    assert queue.next_ready() == job(1) and len(queue) == 0


def test_jobs_of_groups_that_nobody_wants_are_discarded():
    clock = Clock()
    queue = RetryQueue(clock)
    evaluation = Job(RolloutRequest(EpisodeKey("eval/final", 2, 0, task(2))), Sampling())
    for each in (job(1), job(2), evaluation, job(3, (Status.SANDBOX_LOST,))):
        queue.put(each, 0.0)
    assert queue.discard(lambda job: job.is_of({2, 3}))
    assert not queue.discard(lambda job: job.is_of({2, 3}))
    assert [queue.next_ready() for _ in range(3)] == [job(1), evaluation, None]

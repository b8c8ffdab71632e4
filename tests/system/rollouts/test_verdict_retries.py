"""Verdicts that fail and are asked for again, in simulated time: when, how often, and in which
order with all else."""

import itertools
import random

from ale_jax.config.engine import Sampling
from ale_jax.config.rollout import DeadlinesConfig
from ale_jax.records import RolloutRequest
from ale_jax.status import Status
from ale_jax.system.rollouts.breaker import Outside
from ale_jax.system.rollouts.policy_replicas import PolicyReplica, PolicyReplicas
from ale_jax.system.rollouts.pool import AttemptStage
from ale_jax.system.rollouts.workers import CHECK_S, LOOK_S, RolloutWorkers
from ale_jax.system.simulation.world import Clock, Course, SimulatedConversations, SimulatedPool
from tests.system.rollouts.workers import Events, keys

VERDICT_S = 5.0


class Pool(SimulatedPool):
    """Has a place and a reward worker for each episode. began: when verdicts did."""

    def __init__(self, number, course):
        super().__init__(number, lambda key: course, Clock(), reward_workers=number)
        self.began, self.at_once = [], []

    def _begin_verdicts(self):
        begun = super()._begin_verdicts()
        self.began += [self.clock.now for _ in begun]
        self.at_once += [self.judges.busy for _ in begun]
        return begun


class Played:
    """What became of episodes that were played to their ends."""

    def __init__(self, course, retries, number=1, **deadlines):
        self.pool, self.events, self.times = Pool(number, course), Events(), []
        clock = self.pool.clock
        replicas = PolicyReplicas(
            [PolicyReplica(SimulatedConversations(clock, lambda: 0), "", lambda: 0)]
        )
        outside, limits = Outside(clock, random.Random(0)), DeadlinesConfig(**deadlines)
        workers = RolloutWorkers(self.pool, replicas, limits, retries, self.events, outside)
        workers.note_times(self.times.append)
        for key in keys(number):
            workers.submit(RolloutRequest(key), Sampling())
        self.trajectories = []
        while len(self.trajectories) < number and clock.now < 3600.0:
            self.trajectories += workers.results(1.0)
        self.statuses = [each.episode.status for each in self.trajectories]

    @property
    def pauses(self):
        """Seconds between a verdict's end and the next one's begin."""
        return [
            later - earlier - VERDICT_S for earlier, later in itertools.pairwise(self.pool.began)
        ]


def test_each_failure_doubles_the_pause_and_nothing_else_is_repeated():
    played = Played(Course(7.0, verdict=VERDICT_S, failed_verdicts=3), retries=3)
    assert played.statuses == [Status.FINISHED] and played.trajectories[0].rejected == ()
    for pause, longest in zip(played.pauses, (0.25, 0.5, 1.0), strict=True):
        assert longest / 2 <= pause <= longest + LOOK_S
    (attempt,) = played.times
    assert (attempt.seconds, attempt.verdict) == (7.0, 4 * VERDICT_S)
    failed = played.events.of("attempt_failed")
    assert [(each["attempt"], each["retried"]) for each in failed] == [(1, True)] * 3


def test_after_its_last_verdict_an_attempt_has_failed():
    played = Played(Course(7.0, verdict=VERDICT_S, failed_verdicts=9), retries=1)
    assert played.statuses == [Status.VERIFIER_ERROR]
    assert played.trajectories[0].rejected == (Status.VERIFIER_ERROR,)
    assert [each.verdict for each in played.times] == [2 * VERDICT_S] * 2
    retried = [each["retried"] for each in played.events.of("attempt_failed")]
    assert retried == [True, True, True, False]
    assert all(each.stage is AttemptStage.OVER for *_, each in played.pool._ends)


def test_the_deadline_of_a_verdict_is_of_each_one_alone():
    course = Course(1.0, verdict=VERDICT_S, failed_verdicts=4)
    played = Played(course, retries=4, turn_seconds=VERDICT_S + 2 * CHECK_S)
    assert played.statuses == [Status.FINISHED] and len(played.times) == 1


def test_what_had_begun_before_an_outage_uses_up_no_retry():
    """Four failures open the breaker, so that the fourth and later ones are repeated for free."""
    played = Played(Course(7.0, verdict=VERDICT_S, failed_verdicts=1), retries=0, number=6)
    assert sorted(played.statuses) == [Status.FINISHED] * 3 + [Status.VERIFIER_ERROR] * 3
    assert len(played.events.of("episodes_paused")) == 1
    assert len(played.events.of("episodes_resumed")) == 1


def test_in_an_outage_one_verdict_at_a_time_is_a_trial():
    played = Played(Course(7.0, verdict=VERDICT_S, failed_verdicts=3), retries=3, number=6)
    assert played.statuses == [Status.FINISHED] * 6 and len(played.times) == 6
    (paused,) = played.events.of("episodes_paused")
    assert paused["detail"].endswith("ended with verifier_error: ")
    # Two more failures of each are trials, after ever longer pauses, and so is the first success.
    assert played.pool.at_once[6:19] == [1] * 13
    assert played.pauses[6:10] == sorted(played.pauses[6:10]) and played.pauses[10] > 16.0

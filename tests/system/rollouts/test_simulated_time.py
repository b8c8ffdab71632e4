"""The rollout workers on a clock of the test's: what takes minutes is tried in no time."""

import itertools
import random

import pytest

from ale_jax.config.engine import Sampling
from ale_jax.config.rollout import DeadlinesConfig
from ale_jax.gateway.custody.ledger import Activity
from ale_jax.records import Trajectory
from ale_jax.status import Status
from ale_jax.system.rollouts.attempts import failed
from ale_jax.system.rollouts.breaker import Outside
from ale_jax.system.rollouts.policy_replicas import PolicyReplica, PolicyReplicas
from ale_jax.system.rollouts.pool import AttemptStage, Load, PoolCounts, WorkerLost
from ale_jax.system.rollouts.workers import LOOK_S, RolloutWorkers
from tests.system.rollouts.workers import Events, RolloutRequest, keys


class Playing:
    where = "nowhere"

    def __init__(self, pool, key):
        self.pool, self.key, self.outcome, self.stage = pool, key, None, AttemptStage.OVER

    def cancel(self):
        self.pool.ended.append(self)

    def give_up(self, reason):
        raise AssertionError(reason)

    def result(self):
        if isinstance(self.outcome, WorkerLost):
            raise self.outcome
        return failed(self.key, self.outcome or Status.CANCELLED, "as the test says")


class Pool:
    """Waiting lets time pass at once. outcomes: how the next attempts end, one second after they
    begin; a later one never ends by itself."""

    counts, judges = PoolCounts(0, 0), Load(0, 0, 0)

    def __init__(self, outcomes):
        self.outcomes, self.now, self.begun, self.ended, self.free = outcomes, 1000.0, [], [], 1

    def clock(self):
        return self.now

    def play(self, key, url, conversation, prefix):
        playing = Playing(self, key)
        self.begun.append(self.now)
        self.free -= 1
        if len(self.begun) <= len(self.outcomes):
            playing.outcome = self.outcomes[len(self.begun) - 1]
            self.ended.append(playing)
        return playing

    def moved(self, timeout):
        if not self.ended:
            self.now += timeout
            return []
        self.now += 1.0
        self.free += 1
        return [self.ended.pop()]

    def check(self):
        pass

    def close(self):
        pass


class Conversations:
    def __init__(self, pool):
        self._pool, self._opened = pool, {}

    def open(self, name, *rest):
        self._opened[name] = self._pool.now

    def activity(self, name):
        seconds = self._pool.now - self._opened[name]
        return Activity(True, False, 0.0, seconds)

    def stop(self, name):
        pass

    def close(self, name, episode):
        return episode and Trajectory(episode, (), 0)


def play_one(outcomes, seconds, retries=1, **deadlines):
    """Plays one episode for so many seconds. Returns its result, and when each attempt began."""
    pool = Pool(outcomes)
    replicas = PolicyReplicas([PolicyReplica(Conversations(pool), "url", lambda: 0)])
    outside = Outside(pool.clock, random.Random(0))
    limits = DeadlinesConfig(**deadlines)
    with RolloutWorkers(pool, replicas, limits, retries, Events(), outside) as workers:
        workers.submit(RolloutRequest(keys(1)[0]), Sampling())
        result = next(workers.results(seconds), None)
    return result, [round(at - 1000.0, 3) for at in pool.begun]


LEFT = WorkerLost("its node left", left=True)


def pauses(begun):
    """Seconds between an attempt's end and the next one's begin."""
    return [later - earlier - 1.0 for earlier, later in itertools.pairwise(begun)]


@pytest.mark.parametrize(
    "outcomes",
    [[LEFT], [LEFT, LEFT], [Status.SANDBOX_LOST]],
    ids=["node left", "two nodes left", "sandbox lost"],
)
def test_the_first_pause_is_the_shortest_also_where_nothing_counts_as_a_failure(outcomes):
    result, begun = play_one([*outcomes, Status.FINISHED], 60.0)
    assert result.episode.status is Status.FINISHED
    assert len(pauses(begun)) == len(outcomes)
    for pause in pauses(begun):
        assert 0.125 <= pause <= 0.25 + LOOK_S


def test_each_failure_doubles_the_pause():
    _, begun = play_one([*[Status.SANDBOX_LOST] * 3, Status.FINISHED], 60.0, retries=3)
    for pause, longest in zip(pauses(begun), (0.25, 0.5, 1.0), strict=True):
        assert longest / 2 <= pause <= longest + LOOK_S


def test_an_hour_of_an_episode_ends_at_its_deadline():
    result, begun = play_one([], 9000.0, retries=0, episode_seconds=3600.0)
    assert (result.episode.status, begun) == (Status.DEADLINE, [0.0])
    assert result.episode.detail == "the episode took too long: 3600 s, and 3600 s are allowed"


def test_without_a_result_the_time_passes_and_nothing_comes():
    assert play_one([], 100.0) == (None, [0.0])

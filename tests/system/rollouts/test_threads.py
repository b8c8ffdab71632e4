"""Threads that play episodes: what comes back, and what becomes of those that do not end."""

import dataclasses
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from ale_jax.config.engine import Sampling
from ale_jax.config.rollout import DeadlinesConfig, PlacementConfig, RolloutConfig
from ale_jax.errors import RolloutsFailed
from ale_jax.gateway.custody.ledger import Activity
from ale_jax.records import Episode, RolloutRequest, Trajectory
from ale_jax.rollout.play import EpisodeResult
from ale_jax.status import Status
from ale_jax.system.rollouts import threads, workers
from ale_jax.system.rollouts.opening import check_backend
from ale_jax.system.rollouts.policy_replicas import PolicyReplica, PolicyReplicas
from ale_jax.system.rollouts.pool import PoolCounts, WorkerLost
from ale_jax.system.rollouts.threads import ThreadPool
from ale_jax.system.rollouts.workers import RolloutWorkers
from tests.system.rollouts.workers import Events, keys, next_episode, next_result, run_until

LIMIT_S = 20.0


class HandWorker:
    """An episode ends when the test says so, or when it is cancelled unless it is `deaf`."""

    def __init__(self):
        self.ends, self.failures, self.deaf, self.closed = {}, {}, set(), False
        self._begun = threading.Condition()

    def play(self, key, url, conversation, prefix):
        with self._begun:
            self.ends[conversation] = ended = threading.Event()
            self._begun.notify_all()
        assert ended.wait(LIMIT_S)
        if conversation in self.failures:
            raise self.failures[conversation]
        episode = Episode(key, Status.FINISHED, 1.0, 1, 0, 1.0, 0.5)
        return EpisodeResult(episode, sandboxes_up=2, sandboxes_restarted=3)

    def cancel(self, conversation):
        if conversation not in self.deaf:
            self.ends[conversation].set()

    def close(self):
        self.closed = True

    def begun(self, count=1):
        with self._begun:
            assert self._begun.wait_for(lambda: len(self.ends) >= count, LIMIT_S)
        return list(self.ends)


def begin(places=2):
    events, worker = Events(), HandWorker()
    return ThreadPool(worker, places, events), worker, events


def test_an_episode_comes_back_once_and_leaves_its_place():
    pool, worker, _ = begin()
    first, second = (pool.play(key, "url", name, None) for key, name in zip(keys(2), "ab"))
    assert pool.free == 0 and pool.moved(0.01) == []
    worker.begun(2)
    worker.ends["b"].set()
    assert pool.moved(LIMIT_S) == [second]
    assert (pool.free, pool.counts) == (1, PoolCounts(0, 0))
    assert second.result().key == keys(2)[1] and pool.counts == PoolCounts(2, 3)
    worker.ends["a"].set()
    assert pool.moved(LIMIT_S) == [first]
    assert pool.moved(0.01) == [] and pool.free == 2


def test_a_bug_is_raised_with_its_traceback_where_the_result_is_asked_for():
    pool, worker, _ = begin()
    episode = pool.play(keys(1)[0], "url", "a", None)
    worker.begun()
    worker.failures["a"] = ZeroDivisionError("of a world")
    worker.ends["a"].set()
    assert pool.moved(LIMIT_S) == [episode]
    with pytest.raises(ZeroDivisionError, match="of a world") as caught:
        episode.result()
    assert caught.traceback[-1].name == "play"


def test_a_stuck_thread_keeps_its_place_until_it_ends_and_is_named():
    pool, worker, events = begin()
    episode = pool.play(keys(1)[0], "url", "a", None)
    worker.begun()
    for _ in range(2):
        episode.give_up("it was not over")
    assert pool.moved(LIMIT_S) == [episode]
    with pytest.raises(WorkerLost, match=f"{episode.thread.name}, is stuck"):
        episode.result()
    (event,) = events.of("thread_stuck")
    assert episode.thread.name in event["detail"] and "it was not over" in event["detail"]
    assert pool.free == 1
    pool.check()
    worker.ends["a"].set()
    assert pool.moved(LIMIT_S) == [] and pool.free == 2


def test_when_every_thread_is_stuck_the_run_ends_in_one_line():
    pool, worker, _ = begin(places=1)
    pool.play(keys(1)[0], "url", "a", None).give_up("it was not over")
    with pytest.raises(RolloutsFailed, match=r"all 1 places.*set rollout.workers to ray"):
        pool.check()
    worker.begun()
    worker.ends["a"].set()


def test_closing_ends_what_can_be_ended_and_waits_for_nobody_else(monkeypatch):
    monkeypatch.setattr(threads, "CLOSE_S", 0.05)
    pool, worker, _ = begin()
    episode = pool.play(keys(1)[0], "url", "a", None)
    worker.begun()
    pool.close()
    assert worker.closed and episode.thread.is_alive() and episode.thread.daemon
    worker.ends["a"].set()


class SlowLedger:
    """The agent of its first conversation takes `seconds` for a turn."""

    def __init__(self):
        self.opened, self.stopped, self.seconds = [], [], 3600.0

    def open(self, name, key, sampling, prefix_turns, redraw):
        self.opened.append(name)

    def activity(self, name):
        return Activity(True, False, self.seconds if name == self.opened[0] else 0.0, 0.0)

    def stop(self, name):
        self.stopped.append(name)

    def start_version(self, name):
        return 4

    def close(self, name, episode):
        return episode and Trajectory(episode, (), 0)


@pytest.fixture
def slow(monkeypatch):
    monkeypatch.setattr(workers, "CANCEL_S", 0.0)
    monkeypatch.setattr(workers, "CHECK_S", 0.0)
    pool, worker, events = begin()
    ledger = SlowLedger()
    replicas = PolicyReplicas([PolicyReplica(ledger, "url", lambda: 0)])
    with RolloutWorkers(pool, replicas, DeadlinesConfig(), 1, events) as rollout_workers:
        yield SimpleNamespace(workers=rollout_workers, worker=worker, events=events, ledger=ledger)
        for end in worker.ends.values():
            end.set()


def test_an_attempt_that_misses_its_deadline_is_cancelled_and_repeated(slow):
    (key,) = keys(1)
    slow.workers.submit(RolloutRequest(key), Sampling())
    run_until(slow.workers, lambda: len(slow.ledger.opened) == 2)
    slow.worker.begun(2)
    slow.worker.ends[slow.ledger.opened[1]].set()
    assert next_episode(slow.workers).status is Status.FINISHED
    (failure,) = slow.events.of("attempt_failed")
    assert (failure["status"], failure["retried"]) == ("deadline", True)
    assert slow.ledger.stopped == slow.ledger.opened[:1]


def test_an_attempt_that_does_not_end_then_is_repeated_beside_its_stuck_thread(slow):
    (key,) = keys(1)
    slow.workers.submit(RolloutRequest(key), Sampling())
    stuck = slow.ledger.opened[0]
    slow.worker.deaf.add(stuck)
    run_until(slow.workers, lambda: len(slow.ledger.opened) == 2)
    assert slow.events.of("thread_stuck") and slow.workers.free_places == 0
    slow.worker.begun(2)
    slow.worker.ends[slow.ledger.opened[1]].set()
    assert next_episode(slow.workers).status is Status.FINISHED
    assert slow.workers.free_places == 1
    slow.worker.ends[stuck].set()
    run_until(slow.workers, lambda: slow.workers.free_places == 2)


def test_an_abandoned_attempt_has_no_result(slow):
    (key,) = keys(1)
    slow.ledger.seconds = 0.0
    slow.workers.submit(RolloutRequest(key), Sampling())
    assert slow.workers.start_versions() == {key.group: 4}
    assert "in thread episode-1" in slow.workers.waiting_for()
    slow.worker.begun()
    slow.workers.abandon([key.group])
    run_until(slow.workers, lambda: slow.workers.free_places == 2)
    assert next_result(slow.workers, 0.05) is None
    assert not slow.events


def test_what_threads_cannot_do_is_refused_by_name():
    rollout = RolloutConfig(workers="threads")
    with pytest.raises(ValueError, match=r"placement .*is for Ray's actors"):
        dataclasses.replace(rollout, placement=PlacementConfig(cpus=2.0))
    with pytest.raises(ValueError, match=r"workers 'processes' is unknown.*ray, threads"):
        dataclasses.replace(rollout, workers="processes")
    with pytest.raises(ValueError, match=r"--ray-address=auto has no use.*threads"):
        check_backend(rollout, "auto")
    check_backend(rollout, "")


@pytest.mark.heavy
def test_what_drives_a_run_does_not_load_ray():
    code = "import sys, ale_jax.system.controller; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "False"

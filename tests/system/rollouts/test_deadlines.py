"""Attempts that hang are played again, and an outage pauses the workers and drops nothing."""

import dataclasses
import os
import signal
import time

import pytest

from ale_jax.agent.tools import bash, render_tool_call
from ale_jax.config.engine import Sampling
from ale_jax.engine.request import EngineStopped
from ale_jax.errors import RolloutsFailed
from ale_jax.records import RolloutRequest
from ale_jax.status import Status
from ale_jax.system.rollouts import breaker
from ale_jax.system.rollouts import workers as rollout_workers
from ale_jax.system.rollouts.breaker import Breaker
from tests.system import sandboxes
from tests.system.oracle_ledger import OracleLedger
from tests.system.rollouts.workers import (
    LONG,
    Events,
    SilentLedger,
    keys,
    next_episode,
    next_result,
    play_all,
    run_until,
    wait_until,
    workers_of,
)


@pytest.fixture(params=["ray", "threads"])
def by_threads(request):
    """Whether threads play instead of actors."""
    if request.param == "ray":
        request.getfixturevalue("ray")
    return request.param == "threads"


GONE = dataclasses.replace(LONG, turn_seconds=0.2)


def lose_one(workers, events, deadlines):
    """Lets the workers work under `deadlines` until an attempt has failed. The next one has all the
    time that it needs, on however busy a machine."""
    workers._deadlines = deadlines
    run_until(workers, lambda: events.of("attempt_failed"))
    workers._deadlines = LONG


@pytest.mark.heavy
def test_an_episode_of_a_stopped_actor_is_played_again_by_another(ray, runtime_name, monkeypatch):
    monkeypatch.setattr(rollout_workers, "CANCEL_S", 0.5)
    ledger, events, (key,) = OracleLedger(), Events(), keys(1)
    ledger.gate.clear()
    with workers_of(runtime_name, ledger, events, actors=1) as workers:
        workers.submit(RolloutRequest(key), Sampling())
        run_until(workers, lambda: ledger.asked == 1 and events)
        pid = events[0]["pid"]
        os.kill(pid, signal.SIGSTOP)
        held = sandboxes.of(runtime_name, pid)
        ledger.gate.set()
        lose_one(workers, events, GONE)
        episode = next_episode(workers)
        assert (episode.status, episode.reward) == (Status.FINISHED, 1.0)
        wait_until(lambda: not sandboxes.process_exists(pid))
        assert held
        wait_until(lambda: not any(sandboxes.exists(runtime_name, each) for each in held))
    (failure,) = events.of("attempt_failed")
    assert (failure["status"], failure["retried"]) == ("deadline", True)
    assert "took too long for a turn" in failure["detail"]
    assert "0.2 s are allowed" in failure["detail"]
    (lost,) = events.of("actor_lost")
    assert "was not over 0.5 s after it was cancelled" in lost["detail"]


class SleepingLedger(OracleLedger):
    """Its first conversation sleeps until the deadline, and longer than a command may."""

    def open(self, name, key, *rest):
        super().open(name, key, *rest)
        if len(self.opened) == 1:
            sleep = render_tool_call(bash("sleep 4"))
            self._scripts[name] = [sleep] * 9


@pytest.mark.heavy
def test_an_episode_that_takes_too_long_is_cancelled_and_its_sandbox_freed(
    by_threads, each_runtime
):
    ledger, events, (key,) = SleepingLedger(), Events(), keys(1)
    options = {"actors": 1, "threads": by_threads}
    with workers_of(each_runtime, ledger, events, **options) as workers:
        workers.submit(RolloutRequest(key), Sampling())
        run_until(workers, lambda: ledger.asked == 1)
        lose_one(workers, events, dataclasses.replace(LONG, episode_seconds=0.2))
        assert next_episode(workers).reward == 1.0
        assert workers.counts.sandboxes_restarted == 1
    (failure,) = events.of("attempt_failed")
    assert failure["status"] == "deadline" and "the episode took too long" in failure["detail"]
    assert not events.of("actor_lost") and not events.of("thread_stuck")


def test_a_policy_that_takes_its_time_misses_no_deadline(runtime_name):
    ledger, events, (key,) = OracleLedger(), Events(), keys(1)
    ledger.gate.clear()
    with workers_of(runtime_name, ledger, events, threads=True) as workers:
        workers.submit(RolloutRequest(key), Sampling())
        run_until(workers, lambda: ledger.asked == 1)
        used = ledger.activity(ledger.opened[0]).total_seconds
        allowed = dataclasses.replace(LONG, turn_seconds=0.2, episode_seconds=used + 0.2)
        workers._deadlines = allowed
        until = time.monotonic() + 2 * rollout_workers.CHECK_S
        run_until(workers, lambda: time.monotonic() > until)
        workers._deadlines = LONG
        ledger.gate.set()
        assert next_episode(workers).reward == 1.0
    assert not events.of("attempt_failed")


def test_abandoned_groups_have_no_result_and_leave_their_places(by_threads, runtime_name):
    ledger, events, wanted = OracleLedger(), Events(), keys(3)
    ledger.gate.clear()
    options = {"actors": 1, "episodes_per_actor": 3, "threads": by_threads}
    with workers_of(runtime_name, ledger, events, **options) as workers:
        for key in wanted:
            workers.submit(RolloutRequest(key), Sampling())
        run_until(workers, lambda: ledger.asked == 3)
        assert "3 episodes are in progress, " in workers.waiting_for()
        workers.abandon({0, 2})
        ledger.gate.set()
        assert next_episode(workers).key == wanted[1]
        run_until(workers, lambda: workers.free_places == 3)
    assert ledger.open_conversations == 0
    assert not events.of("attempt_failed")


def test_an_actor_is_not_replaced_for_an_abandoned_turn_that_may_go_on(
    ray, runtime_name, monkeypatch
):
    monkeypatch.setattr(rollout_workers, "CANCEL_S", 0.0)
    ledger, events, (key, other) = OracleLedger(), Events(), keys(2)
    ledger.gate.clear()
    with workers_of(runtime_name, ledger, events, actors=1) as workers:
        workers.submit(RolloutRequest(key), Sampling())
        run_until(workers, lambda: ledger.asked == 1 and events)
        workers.abandon({key.group})
        for _ in range(3):
            workers._next_check = 0.0
            assert next_result(workers, 0.05) is None
        ledger.gate.set()
        run_until(workers, lambda: workers.free_places == 2)
        workers.submit(RolloutRequest(other), Sampling())
        assert next_episode(workers).reward == 1.0
    assert not events.of("actor_lost")


class RecoveringLedger(OracleLedger):
    """Its engine fails the first `failures` replies."""

    def __init__(self, failures):
        super().__init__()
        self._failures = failures

    def reply(self, name):
        with self._lock:
            self._failures -= 1
            if self._failures >= 0:
                raise EngineStopped("engine closed")
        return super().reply(name)


def test_an_outage_pauses_episodes_and_drops_none(runtime_name, monkeypatch):
    monkeypatch.setattr(Breaker, "FIRST_PAUSE_S", 0.1)
    monkeypatch.setattr(breaker, "FIRST_BACKOFF_S", 0.01)
    # 4 attempts open the breaker, 2 were begun before, and 3 trials fail.
    ledger, events, wanted = RecoveringLedger(9), Events(), keys(6)
    options = {"episodes_per_actor": 3, "retries": 2, "threads": True}
    with workers_of(runtime_name, ledger, events, **options) as workers:
        episodes = play_all(workers, wanted)
    assert [e.reward for e in episodes] == [1.0] * 6
    (paused,), (resumed,) = events.of("episodes_paused"), events.of("episodes_resumed")
    assert "model_error: PolicyError: the policy did not answer" in paused["detail"]
    assert resumed["detail"].startswith("after a pause of ")
    assert all(e["retried"] for e in events.of("attempt_failed"))


def test_an_outage_that_lasts_ends_the_run_in_one_line(runtime_name, monkeypatch):
    monkeypatch.setattr(Breaker, "FIRST_PAUSE_S", 0.1)
    monkeypatch.setattr(breaker, "FIRST_BACKOFF_S", 0.01)
    deadlines = dataclasses.replace(LONG, outage_seconds=0.5)
    options = {"episodes_per_actor": 3, "retries": 9, "deadlines": deadlines, "threads": True}
    with workers_of(runtime_name, SilentLedger(), Events(), **options) as workers:
        for key in keys(4):
            workers.submit(RolloutRequest(key), Sampling())
        with pytest.raises(RolloutsFailed, match=r"no episode could be played.*engine closed"):
            next_result(workers)

"""The rollout workers with real sandboxes: what is submitted comes back, once. Threads play instead
of Ray's actors where nothing happens to a worker.
"""

import dataclasses
import os
import signal
from pathlib import Path

import pytest

from ale_jax.agent.api import Reply
from ale_jax.agent.tools import bash, render_tool_call
from ale_jax.config.agent import AgentLimits
from ale_jax.config.engine import Sampling
from ale_jax.data.packing import text_turn
from ale_jax.envs.shell.families import generate
from ale_jax.errors import RolloutsFailed
from ale_jax.records import EpisodeKey, Prefix, RolloutRequest, Task
from ale_jax.status import Status
from ale_jax.system.rollouts.workers import WorkerCounts
from tests.system import sandboxes
from tests.system.conftest import SPEC
from tests.system.oracle_ledger import OracleLedger
from tests.system.rollouts.workers import (
    LIMITS,
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

NEVER_LOADED = "jaxlib", "tokenizers", "libtpu", "safetensors"  # by an actor


def test_every_oracle_earns_its_reward(ray, runtime_name):
    ledger, events, wanted = OracleLedger(), Events(), keys(10)
    with workers_of(runtime_name, ledger, events) as workers:
        assert workers.free_places == 4
        episodes = play_all(workers, wanted)
        assert workers.free_places == 4
        assert workers.counts.sandboxes_busy == 0
        assert 2 <= workers.counts.sandboxes_up <= 4  # and so they are used again
        assert workers.counts.sandboxes_restarted == 0
        for loaded in [Path(f"/proc/{e['pid']}/maps").read_text() for e in events]:
            assert "python" in loaded
            assert not [name for name in NEVER_LOADED if name in loaded]
    assert {e.key for e in episodes} == set(wanted)
    assert [(e.status, e.reward) for e in episodes] == [(Status.FINISHED, 1.0)] * 10
    assert ledger.open_conversations == 0
    assert len(set(ledger.opened)) == 10
    assert [e["kind"] for e in events] == ["actor_started"] * 2


def test_slots_are_spread_over_the_actors(ray, runtime_name):
    ledger, events = OracleLedger(), Events()
    ledger.gate.clear()
    with workers_of(runtime_name, ledger, events) as workers:
        for key in keys(2):
            workers.submit(RolloutRequest(key), Sampling())
        run_until(workers, lambda: len(events.of("actor_started")) == 2 and ledger.asked == 2)
        assert [worker.busy for worker in workers._pool.workers] == [1, 1]
        assert (workers.counts.sandboxes_busy, workers.free_places) == (2, 2)
        ledger.gate.set()


def test_a_killed_actor_loses_no_slot(ray, runtime_name):
    ledger, events, wanted = OracleLedger(), Events(), keys(4)
    ledger.gate.clear()
    with workers_of(runtime_name, ledger, events) as workers:
        for key in wanted:
            workers.submit(RolloutRequest(key), Sampling())
        run_until(workers, lambda: ledger.asked == 4 and len(events) == 2)
        os.kill(events[0]["pid"], signal.SIGKILL)
        run_until(workers, lambda: len(events.of("attempt_failed")) == 2)
        ledger.gate.set()
        episodes = [next_episode(workers) for _ in wanted]
        run_until(workers, lambda: len(events.of("actor_started")) == 3)
    assert {e.key for e in episodes} == set(wanted)
    assert [e.reward for e in episodes] == [1.0] * 4
    assert len(set(ledger.opened)) == 6  # the two that were lost speak in fresh conversations
    assert ledger.open_conversations == 0
    assert [e["actor"] for e in events.of("actor_lost")] == [events[0]["actor"]]
    assert {(e["status"], e["retried"]) for e in events.of("attempt_failed")} == {
        ("actor_lost", True)
    }


def test_an_actor_that_keeps_dying_ends_its_slot_with_a_status(ray, runtime_name):
    ledger, events, (key,) = OracleLedger(), Events(), keys(1)
    ledger.gate.clear()
    with workers_of(runtime_name, ledger, events, actors=1, episodes_per_actor=1) as workers:
        workers.submit(RolloutRequest(key), Sampling())
        for attempt in (1, 2):
            run_until(
                workers,
                lambda n=attempt: ledger.asked == n and len(events.of("actor_started")) == n,
            )
            os.kill(events.of("actor_started")[-1]["pid"], signal.SIGKILL)
            if attempt == 1:
                run_until(workers, lambda: events.of("attempt_failed"))
        episode = next_episode(workers)
        ledger.gate.set()
    assert (episode.key, episode.status) == (key, Status.ACTOR_LOST)
    assert episode.reward is None
    assert [e["retried"] for e in events.of("attempt_failed")] == [True, False]
    assert ledger.open_conversations == 0


@pytest.mark.heavy
def test_a_killed_sandbox_is_replaced_and_its_episode_played_again(ray, each_runtime):
    ledger, events, (first, second) = OracleLedger(), Events(), keys(2)
    ledger.gate.clear()
    with workers_of(each_runtime, ledger, events, actors=1, episodes_per_actor=1) as workers:
        workers.submit(RolloutRequest(first), Sampling())
        run_until(workers, lambda: ledger.asked == 1 and events)
        sandboxes.kill_only(each_runtime, events[0]["pid"])
        ledger.gate.set()
        assert next_episode(workers).reward == 1.0
        assert workers.counts == WorkerCounts(
            sandboxes_up=1, sandboxes_busy=0, sandboxes_restarted=1
        )
        workers.submit(RolloutRequest(second), Sampling())
        assert next_episode(workers).reward == 1.0
    (failure,) = events.of("attempt_failed")
    assert (failure["status"], failure["attempt"]) == ("sandbox_lost", 1)
    assert len(ledger.opened) == 3


def test_when_retries_are_used_up_the_status_comes_back(runtime_name):
    ledger, events, wanted = SilentLedger(), Events(), keys(1)
    with workers_of(runtime_name, ledger, events, retries=2, threads=True) as workers:
        (episode,) = play_all(workers, wanted)
    assert (episode.key, episode.status) == (wanted[0], Status.MODEL_ERROR)
    assert episode.reward is None
    assert len(set(ledger.opened)) == 3
    assert [e["retried"] for e in events.of("attempt_failed")] == [True, True, False]
    assert ledger.redraws == [0, 0, 0]  # trouble of the system leaves the draw as it is


class WordyLedger(OracleLedger):
    """Never does anything of use."""

    def reply(self, name):
        return Reply("let me think", "stop")


def test_a_failure_of_the_policy_is_judged_and_not_repeated(runtime_name):
    ledger, events, wanted = WordyLedger(), Events(), keys(1)
    with workers_of(runtime_name, ledger, events, threads=True) as workers:
        (episode,) = play_all(workers, wanted)
    assert (episode.status, episode.reward) == (Status.TURN_LIMIT, 0.0)
    assert episode.malformed_calls == LIMITS.turns
    assert len(ledger.opened) == 1
    assert not events.of("attempt_failed")


def test_rejected_calls_are_drawn_anew_and_then_dropped(runtime_name):
    ledger, events, wanted = WordyLedger(), Events(), keys(1)
    limits = AgentLimits(turns=20, malformed_limit=3)
    options = {"retries": 2, "limits": limits, "threads": True}
    with workers_of(runtime_name, ledger, events, **options) as workers:
        workers.submit(RolloutRequest(wanted[0]), Sampling())
        trajectory = next_result(workers)
        assert workers.counts.sandboxes_restarted == 0  # nothing is wrong with the sandbox
    episode = trajectory.episode
    assert (episode.status, episode.reward, episode.turns) == (Status.ILLEGAL_CALLS, None, 3)
    assert trajectory.rejected == (Status.ILLEGAL_CALLS,) * 2
    assert ledger.redraws == [0, 1, 2]
    rejected = events.of("attempt_rejected")
    assert [(e["status"], e["retried"]) for e in rejected] == [
        ("illegal_calls", True),
        ("illegal_calls", True),
        ("illegal_calls", False),
    ]
    assert not events.of("attempt_failed")


def given_after(key, *played):
    """A request after bash commands and what they are said to have shown."""
    seen = [generate(key.task.family, key.task.item).instruction]
    seen += [output for _, output in played]
    calls = [render_tool_call(bash(command)) for command, _ in played]
    turns = tuple(text_turn([1], [2], text, call) for text, call in zip(seen, calls))
    prefix = Prefix(tuple(seen), tuple(calls))
    return RolloutRequest(dataclasses.replace(key, num_prefix_turns=len(turns)), turns, prefix)


class FinishingLedger(OracleLedger):
    """Plays the last call of the oracle, whatever was given."""

    def reply(self, name):
        return Reply(self._scripts[name][-1], "stop")


def test_an_episode_starts_where_its_text_turns_lead(each_runtime):
    key, events = EpisodeKey("train", 0, 0, Task("log", 3, "train")), Events()
    ledger = FinishingLedger()
    first = given_after(key, ("cd /tmp && X=1 && touch lemon", "(no output)"))
    second = given_after(
        key,
        ("cd /tmp && X=5 && touch lemon", "(no output)"),
        ("ls; pwd; echo $X", "lemon\n/tmp\n5"),  # the session is the same, files and all
    )
    with workers_of(each_runtime, ledger, events, threads=True) as workers:
        for request in (first, second):
            workers.submit(request, Sampling())
            episode = next_episode(workers)
            assert (episode.key, episode.status) == (request.key, Status.FINISHED)
            assert (episode.reward, episode.turns) == (1.0, 1)


def test_a_replay_that_shows_something_else_is_rejected(runtime_name):
    key, events = EpisodeKey("train", 0, 0, Task("log", 3, "train")), Events()
    ledger = FinishingLedger()
    chance = given_after(key, ("echo $RANDOM $RANDOM $RANDOM", "1 2 3"))
    with workers_of(runtime_name, ledger, events, threads=True) as workers:
        workers.submit(chance, Sampling())
        trajectory = next_result(workers)
    assert trajectory.episode.status == Status.REPLAY_DIVERGED
    assert trajectory.rejected == (Status.REPLAY_DIVERGED,)
    assert trajectory.turns == () and ledger.asked == 0
    assert "before turn 2" in trajectory.episode.detail and "'1 2 3'" in trajectory.episode.detail
    assert [e["num_prefix_turns"] for e in events.of("attempt_failed")] == [1, 1]


class ChanceLedger(OracleLedger):
    """Asks for chance, and then plays the last call of the oracle."""

    def open(self, name, key, *rest):
        super().open(name, key, *rest)
        chance = render_tool_call(bash("echo $RANDOM $RANDOM $RANDOM"))
        self._scripts[name] = [chance, self._scripts[name][-1]]


@pytest.mark.parametrize(
    ("ledger", "ended"),
    [(OracleLedger(), Status.FINISHED), (ChanceLedger(), Status.NOT_REPRODUCED)],
)
def test_what_is_no_answer_twice_is_not_trained_on(each_runtime, ledger, ended):
    limits = AgentLimits(turns=20, replay_share=1.0)
    key = EpisodeKey("train", 0, 0, Task("log", 3, "train"))
    options = {"limits": limits, "threads": True}
    with workers_of(each_runtime, ledger, Events(), **options) as workers:
        workers.submit(RolloutRequest(key), Sampling())
        trajectory = next_result(workers)
    episode, rejected = trajectory.episode, trajectory.rejected
    assert (episode.status, episode.reward) == (ended, 1.0 if ended == Status.FINISHED else None)
    assert rejected == ((ended,) if ended == Status.NOT_REPRODUCED else ())


def test_actors_that_cannot_start_end_in_their_last_words(ray):
    nothing = dataclasses.replace(SPEC, image="ale-nothing")
    events = Events()
    options = {"actors": 1, "sandbox": nothing, "are_up": False}
    with workers_of("docker", OracleLedger(), events, **options) as workers:
        assert workers.free_places == 0
        with pytest.raises(
            RolloutsFailed, match=r"docker is not usable|image 'ale-nothing' is missing"
        ):
            next_result(workers)
    assert not events.of("actor_started")


def test_closing_in_the_middle_ends_actors_and_sandboxes(ray, each_runtime):
    ledger, events = OracleLedger(), Events()
    ledger.gate.clear()
    with workers_of(each_runtime, ledger, events) as workers:
        for key in keys(4):
            workers.submit(RolloutRequest(key), Sampling())
        run_until(workers, lambda: ledger.asked == 4 and len(events) == 2)
        pids = [event["pid"] for event in events]
        assert [len(sandboxes.of(each_runtime, pid)) for pid in pids] == [2, 2]
        held = [sandbox for pid in pids for sandbox in sandboxes.of(each_runtime, pid)]
    wait_until(lambda: not any(map(sandboxes.process_exists, pids)))
    wait_until(lambda: not any(sandboxes.exists(each_runtime, each) for each in held))
    assert ledger.open_conversations == 0
    ledger.gate.set()

"""The crew against real Ray actors and real sandboxes: what is submitted comes back, once."""

import contextlib
import dataclasses
import os
import signal
import time
from pathlib import Path

import pytest

from ale_jax.agent.api import Reply
from ale_jax.agent.loop import AgentLimits
from ale_jax.agent.tools import bash, render_tool_call
from ale_jax.data.packing import given_turn
from ale_jax.model.sampler import Sampling
from ale_jax.records import Assignment, Opening, Slot, Status, Task
from ale_jax.rollout.door import PolicyDoor
from ale_jax.rollout.engine import EngineStopped
from ale_jax.system.config import RolloutConfig
from ale_jax.system.crew import Crew, CrewCounts
from ale_jax.system.seat import CrewError
from envs.shell.families import TRAIN_FAMILIES, generate
from tests.system import sandboxes
from tests.system.conftest import SPEC
from tests.system.oracle_ledger import OracleLedger

LIMIT_S = 60.0
LIMITS = AgentLimits(turns=20)


class Events(list):
    def __call__(self, kind, detail, **fields):
        self.append({"kind": kind, "detail": detail} | fields)

    def of(self, kind):
        return [event for event in self if event["kind"] == kind]


def slots(count):
    tasks = [Task(TRAIN_FAMILIES[i % len(TRAIN_FAMILIES)], i, "train") for i in range(count)]
    return [Slot("train", i, 0, task) for i, task in enumerate(tasks)]


@contextlib.contextmanager
def crew_of(
    runtime,
    ledger,
    events,
    retries=1,
    actors=2,
    episodes_per_actor=2,
    sandbox=SPEC,
    limits=LIMITS,
):
    rollout = RolloutConfig(runtime, actors, episodes_per_actor, 64, retries)
    with PolicyDoor(ledger) as door, Crew(rollout, sandbox, limits, ledger, door, events) as crew:
        yield crew


def next_episode(crew):
    trajectory = crew.next_result(LIMIT_S)
    assert trajectory is not None, "nothing came back"
    return trajectory.episode


def play_all(crew, wanted):
    waiting, episodes = list(wanted), []
    while len(episodes) < len(wanted):
        while waiting and crew.free_places:
            crew.submit(Assignment(waiting.pop(0)), Sampling())
        episodes.append(next_episode(crew))
    assert crew.next_result(0.2) is None, "something came back twice"
    return episodes


def wait_until(condition):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def pump_until(crew, condition):
    """Lets the crew do its work, with nothing to come back, until `condition` holds."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert crew.next_result(0.05) is None
        assert time.monotonic() < deadline, "waited in vain"


def test_every_oracle_earns_its_reward(ray, runtime_name):
    ledger, events, wanted = OracleLedger(), Events(), slots(10)
    with crew_of(runtime_name, ledger, events) as crew:
        assert crew.free_places == 4
        episodes = play_all(crew, wanted)
        assert crew.free_places == 4
        assert crew.counts.sandboxes_busy == 0
        assert 2 <= crew.counts.sandboxes_up <= 4  # and so they are used again
        assert crew.counts.sandboxes_restarted == crew.counts.actor_restarts == 0
    assert {e.slot for e in episodes} == set(wanted)
    assert [(e.status, e.reward) for e in episodes] == [(Status.FINISHED, 1.0)] * 10
    assert ledger.open_conversations == 0
    assert len(set(ledger.opened)) == 10
    assert [e["kind"] for e in events] == ["actor_started"] * 2


def test_slots_are_spread_over_the_actors(ray, runtime_name):
    ledger, events = OracleLedger(), Events()
    ledger.gate.clear()
    with crew_of(runtime_name, ledger, events) as crew:
        for slot in slots(2):
            crew.submit(Assignment(slot), Sampling())
        pump_until(crew, lambda: len(events.of("actor_started")) == 2 and ledger.asked == 2)
        assert [seat.busy for seat in crew._seats] == [1, 1]
        assert (crew.counts.sandboxes_busy, crew.free_places) == (2, 2)
        ledger.gate.set()


def test_a_killed_actor_loses_no_slot(ray, runtime_name):
    ledger, events, wanted = OracleLedger(), Events(), slots(4)
    ledger.gate.clear()
    with crew_of(runtime_name, ledger, events) as crew:
        for slot in wanted:
            crew.submit(Assignment(slot), Sampling())
        pump_until(crew, lambda: ledger.asked == 4 and len(events) == 2)
        os.kill(events[0]["pid"], signal.SIGKILL)
        pump_until(crew, lambda: len(events.of("attempt_failed")) == 2)
        ledger.gate.set()
        episodes = [next_episode(crew) for _ in wanted]
        pump_until(crew, lambda: len(events.of("actor_started")) == 3)
        assert crew.counts.actor_restarts == 1
    assert {e.slot for e in episodes} == set(wanted)
    assert [e.reward for e in episodes] == [1.0] * 4
    assert len(set(ledger.opened)) == 6  # the two that were lost speak in fresh conversations
    assert ledger.open_conversations == 0
    assert [e["actor"] for e in events.of("actor_lost")] == [events[0]["actor"]]
    assert {(e["status"], e["retried"]) for e in events.of("attempt_failed")} == {
        ("actor_lost", True)
    }


def test_an_actor_that_keeps_dying_ends_its_slot_with_a_status(ray, runtime_name):
    ledger, events, (slot,) = OracleLedger(), Events(), slots(1)
    ledger.gate.clear()
    with crew_of(runtime_name, ledger, events, actors=1, episodes_per_actor=1) as crew:
        crew.submit(Assignment(slot), Sampling())
        for attempt in (1, 2):
            pump_until(
                crew,
                lambda n=attempt: ledger.asked == n and len(events.of("actor_started")) == n,
            )
            os.kill(events.of("actor_started")[-1]["pid"], signal.SIGKILL)
            if attempt == 1:
                pump_until(crew, lambda: events.of("attempt_failed"))
        episode = next_episode(crew)
        ledger.gate.set()
    assert (episode.slot, episode.status) == (slot, Status.ACTOR_LOST)
    assert episode.reward is None
    assert [e["retried"] for e in events.of("attempt_failed")] == [True, False]
    assert ledger.open_conversations == 0


def test_a_killed_sandbox_is_replaced_and_its_episode_played_again(ray, each_runtime):
    ledger, events, (first, second) = OracleLedger(), Events(), slots(2)
    ledger.gate.clear()
    with crew_of(each_runtime, ledger, events, actors=1, episodes_per_actor=1) as crew:
        crew.submit(Assignment(first), Sampling())
        pump_until(crew, lambda: ledger.asked == 1 and events)
        sandboxes.kill_only(each_runtime, events[0]["pid"])
        ledger.gate.set()
        assert next_episode(crew).reward == 1.0
        assert crew.counts == CrewCounts(
            sandboxes_up=1,
            sandboxes_busy=0,
            sandboxes_restarted=1,
            sandbox_failures=1,
            actor_restarts=0,
        )
        crew.submit(Assignment(second), Sampling())
        assert next_episode(crew).reward == 1.0
    (failure,) = events.of("attempt_failed")
    assert (failure["status"], failure["attempt"]) == ("sandbox_lost", 1)
    assert len(ledger.opened) == 3


class SilentLedger(OracleLedger):
    """Its engine is gone."""

    def reply(self, name, new_messages):
        raise EngineStopped("engine closed")


def test_when_retries_are_used_up_the_status_comes_back(ray, runtime_name):
    ledger, events, wanted = SilentLedger(), Events(), slots(3)
    with crew_of(runtime_name, ledger, events, retries=2, actors=1) as crew:
        episodes = play_all(crew, wanted)
    assert {e.slot for e in episodes} == set(wanted)
    assert [(e.status, e.reward) for e in episodes] == [(Status.MODEL_ERROR, None)] * 3
    assert len(set(ledger.opened)) == 9
    assert [e["retried"] for e in events.of("attempt_failed")].count(False) == 3


class WordyLedger(OracleLedger):
    """Never does anything of use."""

    def reply(self, name, new_messages):
        return Reply("let me think", "stop")


def test_a_failure_of_the_policy_is_judged_and_not_repeated(ray, runtime_name):
    ledger, events, wanted = WordyLedger(), Events(), slots(1)
    with crew_of(runtime_name, ledger, events, actors=1) as crew:
        (episode,) = play_all(crew, wanted)
    assert (episode.status, episode.reward) == (Status.TURN_LIMIT, 0.0)
    assert episode.malformed_calls == LIMITS.turns
    assert len(ledger.opened) == 1
    assert not events.of("attempt_failed")


def test_rejected_calls_are_drawn_anew_and_then_dropped(ray, runtime_name):
    ledger, events, wanted = WordyLedger(), Events(), slots(1)
    limits = AgentLimits(turns=20, malformed_limit=3)
    with crew_of(runtime_name, ledger, events, retries=2, actors=1, limits=limits) as crew:
        crew.submit(Assignment(wanted[0]), Sampling())
        trajectory = crew.next_result(LIMIT_S)
        assert crew.counts.sandboxes_restarted == 0  # nothing is wrong with the sandbox
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


def test_trouble_of_the_system_leaves_the_draw_as_it_is(ray, runtime_name):
    ledger, events = SilentLedger(), Events()
    with crew_of(runtime_name, ledger, events, retries=2, actors=1) as crew:
        play_all(crew, slots(1))
    assert ledger.redraws == [0, 0, 0]


def given_after(slot, *played):
    """An assignment after bash commands and what they are said to have shown."""
    seen = [generate(slot.task.family, slot.task.seed).instruction]
    seen += [output for _, output in played]
    calls = [render_tool_call(bash(command)) for command, _ in played]
    turns = tuple(given_turn([1], [2], text, call) for text, call in zip(seen, calls))
    opening = Opening(tuple(seen), tuple(calls))
    return Assignment(dataclasses.replace(slot, start=len(turns)), turns, opening)


class FinishingLedger(OracleLedger):
    """Plays the last call of the oracle, whatever was given."""

    def reply(self, name, new_messages):
        return Reply(self._scripts[name][-1], "stop")


def test_an_episode_starts_where_its_given_turns_lead(ray, each_runtime):
    slot, events = Slot("train", 0, 0, Task("log", 3, "train")), Events()
    ledger = FinishingLedger()
    first = given_after(slot, ("cd /tmp && X=1 && touch lemon", "(no output)"))
    second = given_after(
        slot,
        ("cd /tmp && X=5 && touch lemon", "(no output)"),
        ("ls; pwd; echo $X", "lemon\n/tmp\n5"),  # the session is the same, files and all
    )
    with crew_of(each_runtime, ledger, events, actors=1) as crew:
        for assignment in (first, second):
            crew.submit(assignment, Sampling())
            episode = next_episode(crew)
            assert (episode.slot, episode.status) == (assignment.slot, Status.FINISHED)
            assert (episode.reward, episode.turns) == (1.0, 1)


def test_a_replay_that_shows_something_else_is_rejected(ray, runtime_name):
    slot, events = Slot("train", 0, 0, Task("log", 3, "train")), Events()
    ledger = FinishingLedger()
    chance = given_after(slot, ("echo $RANDOM $RANDOM $RANDOM", "1 2 3"))
    with crew_of(runtime_name, ledger, events, retries=1, actors=1) as crew:
        crew.submit(chance, Sampling())
        trajectory = crew.next_result(LIMIT_S)
    assert trajectory.episode.status == Status.REPLAY_DIVERGED
    assert trajectory.rejected == (Status.REPLAY_DIVERGED,)
    assert trajectory.turns == () and ledger.asked == 0
    assert "before turn 2" in trajectory.episode.detail and "'1 2 3'" in trajectory.episode.detail
    assert [e["start"] for e in events.of("attempt_failed")] == [1, 1]


class ChanceLedger(OracleLedger):
    """Asks for chance, and then plays the last call of the oracle."""

    def open(self, name, slot, *rest):
        super().open(name, slot, *rest)
        chance = render_tool_call(bash("echo $RANDOM $RANDOM $RANDOM"))
        self._scripts[name] = [chance, self._scripts[name][-1]]


@pytest.mark.parametrize(
    ("ledger", "ended"),
    [(OracleLedger(), Status.FINISHED), (ChanceLedger(), Status.NOT_REPRODUCED)],
)
def test_what_is_no_answer_twice_is_not_trained_on(ray, each_runtime, ledger, ended):
    limits = AgentLimits(turns=20, replay_share=1.0)
    slot = Slot("train", 0, 0, Task("log", 3, "train"))
    with crew_of(each_runtime, ledger, Events(), retries=1, actors=1, limits=limits) as crew:
        crew.submit(Assignment(slot), Sampling())
        trajectory = crew.next_result(LIMIT_S)
    episode, rejected = trajectory.episode, trajectory.rejected
    assert (episode.status, episode.reward) == (ended, 1.0 if ended == Status.FINISHED else None)
    assert rejected == ((ended,) if ended == Status.NOT_REPRODUCED else ())


def test_actors_that_cannot_start_end_in_their_last_words(ray):
    nothing = dataclasses.replace(SPEC, image="ale-nothing")
    events = Events()
    with crew_of("docker", OracleLedger(), events, actors=1, sandbox=nothing) as crew:
        crew.submit(Assignment(slots(1)[0]), Sampling())
        with pytest.raises(CrewError, match=r"docker is not usable|image 'ale-nothing' is missing"):
            while True:
                crew.next_result(LIMIT_S)
    assert not events.of("actor_started")


def test_closing_in_the_middle_ends_actors_and_sandboxes(ray, each_runtime):
    ledger, events = OracleLedger(), Events()
    ledger.gate.clear()
    with crew_of(each_runtime, ledger, events) as crew:
        for slot in slots(4):
            crew.submit(Assignment(slot), Sampling())
        pump_until(crew, lambda: ledger.asked == 4 and len(events) == 2)
        pids = [event["pid"] for event in events]
        assert [len(sandboxes.of(each_runtime, pid)) for pid in pids] == [2, 2]
        held = [sandbox for pid in pids for sandbox in sandboxes.of(each_runtime, pid)]
    wait_until(lambda: not any(map(sandboxes.process_exists, pids)))
    wait_until(lambda: not any(sandboxes.exists(each_runtime, each) for each in held))
    assert ledger.open_conversations == 0
    ledger.gate.set()


def test_an_actor_never_loads_jax_or_transformers(ray, runtime_name):
    ledger, events = OracleLedger(), Events()
    with crew_of(runtime_name, ledger, events, actors=1) as crew:
        play_all(crew, slots(1))
        loaded = Path(f"/proc/{events[0]['pid']}/maps").read_text()
    assert "libpython" in loaded or "python" in loaded
    assert not [
        name for name in ("jaxlib", "tokenizers", "libtpu", "safetensors") if name in loaded
    ]

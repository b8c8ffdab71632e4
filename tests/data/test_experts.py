"""The store of experts: what takes whose place, what is given, and what survives a checkpoint."""

import dataclasses
import json

import numpy as np
import pytest

from ale_jax.data.experts import (
    Expert,
    ExpertStore,
    assign,
    expert_from_json,
    expert_to_json,
    is_expert,
)
from ale_jax.records import EpisodeKey, Prefix, Task
from ale_jax.status import Status
from tests.data.make_trajectories import make_trajectory, make_turn
from tests.rows import each_row

TASK = Task("fake", 0, "train")


def play(*actions, version=0, **changes):
    """A success at TASK; a token for each character of an action."""
    turns = []
    for number, action in enumerate(actions):
        turn = make_turn([100 + number], list(map(ord, action)), version=version)
        texts = {"action_text": action, "prompt_text": f"seen {number}"}
        turns.append(dataclasses.replace(turn, **texts))
    turns[-1] = dataclasses.replace(turns[-1], reward=1.0)
    return make_trajectory(0, 0, turns, start_version=version, **changes)


def expert(*actions, version=0):
    return Expert.of(play(*actions, version=version))


def test_an_expert_keeps_the_ids_and_forgets_who_sampled_them():
    made = expert("a", "b", version=7)
    for turn, sampled in zip(made.turns, play("a", "b").turns, strict=True):
        np.testing.assert_array_equal(turn.prompt_ids, sampled.prompt_ids)
        np.testing.assert_array_equal(turn.action_ids, sampled.action_ids)
        assert (turn.logp_mu, turn.logp_old, turn.version, turn.reward) == (0.0, 0.0, -1, 0.0)
    assert (made.version, made.reward, made.num_tokens) == (7, 1.0, 4)


@each_row(
    "candidate, taken",
    [
        (expert("a", "x", version=3), True),  # as long, and newer
        (expert("a", "x", version=1), False),  # older
        (expert("x", version=1), True),  # shorter, however old
        (expert("a", "b", "c", version=9), False),
        (expert("a", "b", version=9), False),  # the same again: nothing to be replayed
    ],
)
def test_the_shorter_and_then_the_newer_takes_the_place(candidate, taken):
    store = ExpertStore([expert("a", "b", version=2)])
    assert store.wants(candidate) is taken
    assert ExpertStore().wants(candidate)


def test_the_best_of_a_step_is_one_per_task():
    played = [
        play("a", "b", "c", version=4),
        play("d", "e", version=2),
        play("f", "g", version=4),
        play("h", "i", version=4),
        play("j", status=Status.TURN_LIMIT),
        play("k", reward=0.01),
        play("l", status=Status.SANDBOX_LOST, reward=None),
    ]
    (best,) = ExpertStore().best_of(played)
    assert [turn.action_text for turn in best.turns] == ["f", "g"]
    assert ExpertStore([expert("m", version=9)]).best_of(played) == []
    assert [is_expert(t) for t in played] == [True] * 4 + [False] * 3


def test_an_expert_is_dropped_if_it_is_the_tasks_also_after_a_resume():
    first, second = expert("a"), expert("b")
    store = ExpertStore([first])
    store.put(second)
    assert not store.drop(first) and store.get(TASK) is second
    again = expert_from_json(expert_to_json(second))
    assert store.drop(again) and store.get(TASK) is None and len(store) == 0


def test_equal_first_actions_lead_to_one_state():
    assert expert("a", "b", "c").shared_turns(expert("a", "b", "x")) == 2
    assert expert("a", "b").shared_turns(expert("a", "b", "c")) == 2
    assert expert("x").shared_turns(expert("a")) == 0


def test_a_start_gives_the_turns_before_it_and_what_must_be_seen():
    made, key = expert("a", "b", "c"), EpisodeKey("train", 3, 1, TASK, num_prefix_turns=2)
    assigned = assign(key, made)
    assert assigned.prefix_turns == made.turns[:2]
    assert assigned.prefix == Prefix(("seen 0", "seen 1", "seen 2"), ("a", "b"))
    assert not assigned.prefix.ends
    whole = assign(dataclasses.replace(key, num_prefix_turns=3), made)
    assert whole.prefix.ends and whole.prefix.actions == ("a", "b", "c")
    beginning = assign(dataclasses.replace(key, num_prefix_turns=0), made)
    assert (beginning.prefix_turns, beginning.prefix) == ((), None)


def test_evaluations_start_at_the_beginning():
    with pytest.raises(AssertionError):
        EpisodeKey("eval/final", 0, 0, TASK, num_prefix_turns=1)


def test_experts_survive_a_checkpoint():
    store = ExpertStore([expert("a", "ü\n\x00", version=3)])
    again = ExpertStore.from_json(json.loads(json.dumps(store.to_json())))
    assert again.to_json() == store.to_json()
    before, after = store.get(TASK), again.get(TASK)
    assert (after.task, after.version, after.reward) == (before.task, 3, 1.0)
    for a, b in zip(before.turns, after.turns, strict=True):
        for field in dataclasses.fields(a):
            ours, theirs = getattr(a, field.name), getattr(b, field.name)
            np.testing.assert_array_equal(ours, theirs)
            assert np.asarray(ours).dtype == np.asarray(theirs).dtype

"""Credit along the tree of a group's histories, against its formula written out, and its limits."""

import dataclasses

import numpy as np
import pytest

from ale_jax.config.algo import AdvantageHypers
from ale_jax.data.replay import Group
from ale_jax.records import SideBranch
from tests.algo.groups_of_histories import credit, member, random_groups
from tests.rows import each_row

TREE = AdvantageHypers("tree", "group", "none")
OUTCOME = AdvantageHypers("outcome", "group", "none")
OUTCOMES = (0.0, 0.25, 1.0)
WORLDS = (("a", "x"), ("abcd", "x"), ("a", "xy"), ("ab", "xy"))  # what may be seen and done


def of_the_paper(group, trajectory):
    """P(child) - P(parent) while others pass through the parent, then R - P(last of these)."""

    def history(member, chunk):
        texts = [text for turn in member.turns for text in (turn.prompt_text, turn.action_text)]
        return texts[: 2 * chunk + 1]

    def passing(chunk):
        """The outcomes of the valid members that had done and seen the same before that chunk."""
        return [
            t.episode.reward
            for t in group.valid
            if chunk == 0 or history(t, chunk) == history(trajectory, chunk)
        ]

    advantages, shared = [], 0
    for chunk in range(len(trajectory.turns)):
        if len(passing(chunk)) > 1:
            shared = chunk
    for chunk in range(len(trajectory.turns)):
        after = np.mean(passing(chunk + 1)) if chunk < shared else trajectory.episode.reward
        advantages.append(after - np.mean(passing(min(chunk, shared))))
    return advantages, shared


@each_row("seed, words, actions", [(seed, *world) for seed in (0, 1, 2) for world in WORLDS])
def test_it_is_the_difference_of_mean_outcomes(seed, words, actions):
    groups = random_groups(seed, words=words, outcomes=OUTCOMES, actions=actions)
    found_NC, n = credit(groups, TREE), 0
    for group in groups:
        root = np.mean([t.episode.reward for t in group.valid])
        for trajectory in group.members:
            length = len(trajectory.turns) if trajectory in group.valid else 0
            if length:
                expected, shared = of_the_paper(group, trajectory)
                np.testing.assert_allclose(found_NC[n, :length], expected, atol=1e-5)
                whole = found_NC[n, : shared + 1].sum()
                np.testing.assert_allclose(whole, trajectory.episode.reward - root, atol=1e-5)
            assert not found_NC[n, length:].any()
            n += 1


def test_a_tree_by_hand():
    """a is passed by three, of whom one wins; after b, all is the own outcome."""
    seen = ["tab", "tac", "tad", "txy"]
    outcomes = [1.0, 0.0, 0.0, 1.0]
    members = [member(0, n, s, r) for n, (s, r) in enumerate(zip(seen, outcomes, strict=True))]
    found = credit([Group(0, tuple(members))], TREE)[:, :3]
    after_a, root = 1 / 3, 1 / 2
    expected = [
        [after_a - root, 1 - after_a, 1 - after_a],
        [after_a - root, -after_a, -after_a],
        [after_a - root, -after_a, -after_a],
        [1 - root, 1 - root, 1 - root],
    ]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_members_that_did_different_things_share_nothing_though_the_world_is_silent():
    did, outcomes = ["ax", "bx", "cx", "dx"], [1.0, 0.0, 0.0, 1.0]
    members = [member(0, n, "t.", outcomes[n], did=did[n]) for n in range(4)]
    group = Group(0, tuple(members))
    np.testing.assert_array_equal(credit([group], TREE), credit([group], OUTCOME))


def test_credit_begins_where_histories_part():
    did, outcomes = ["aabx", "aaby", "aacx", "aacz"], [1.0, 0.0, 0.0, 0.0]
    members = [member(0, n, "t...", outcomes[n], did=did[n]) for n in range(4)]
    # P is 1/4 until the third chunk, then 1/2 after b and 0 after c.
    expected = [[0, 0, 1 / 4, 1 / 2], [0, 0, 1 / 4, -1 / 2], *[[0, 0, -1 / 4, 0]] * 2]
    np.testing.assert_array_equal(credit([Group(0, tuple(members))], TREE)[:, :4], expected)


def test_a_conversation_on_the_side_does_not_forget_what_was_done_in_another():
    """Two members that begin differently, and then each a conversation with the same prompt."""

    def with_a_side(number, action):
        made = member(0, number, "tu", float(number), did=[action, "x"])
        first, second = (dataclasses.replace(t, number=n) for n, t in enumerate(made.turns))
        return dataclasses.replace(made, turns=(first,), side_branches=(SideBranch((second,)),))

    same, apart = (
        credit([Group(0, (with_a_side(0, "a"), with_a_side(1, other)))], TREE) for other in "ab"
    )
    np.testing.assert_array_equal(same[:, :2], [[0, -1 / 2], [0, 1 / 2]])
    np.testing.assert_array_equal(apart[:, :2], [[-1 / 2, -1 / 2], [1 / 2, 1 / 2]])


def test_a_group_that_shares_its_root_alone_is_reinforce_with_the_groups_mean():
    draw = np.random.default_rng(0)
    members = [
        member(0, n, ["t", f"{n}", f"{n} again"][: 1 + n % 3], float(draw.random()), n != 4)
        for n in range(7)
    ]
    group = Group(0, tuple(members))
    expected = credit([group], OUTCOME)
    assert len(np.unique(expected)) == 7  # six members, and 0
    np.testing.assert_array_equal(credit([group], TREE), expected)


def test_the_beginning_is_shared_even_if_it_looks_different():
    group = Group(0, tuple(member(0, n, [f"{n}", "x"], float(n == 0)) for n in range(3)))
    np.testing.assert_array_equal(credit([group], TREE), credit([group], OUTCOME))


def test_a_group_of_equal_histories_and_outcomes_is_zero():
    group = Group(0, tuple(member(0, n, "tabc", 0.3) for n in range(5)))
    assert not credit([group], TREE).any()


def test_equal_histories_part_at_their_ends():
    group = Group(0, (member(0, 0, "tab", 1.0), member(0, 1, "tab", 0.0), member(0, 2, "ta", 0.0)))
    # P is 1/3 at the beginning and after t, where all three pass, and 1/2 after a.
    expected = [[0, 1 / 6, 1 / 2], [0, 1 / 6, -1 / 2], [0, -1 / 3, 0]]
    np.testing.assert_allclose(credit([group], TREE)[:, :3], expected, atol=1e-6)


def test_a_trajectory_without_chunks_counts_at_the_root():
    group = Group(0, (member(0, 0, "ta", 1.0), member(0, 1, "", 0.0)))
    np.testing.assert_array_equal(credit([group], TREE)[:, :2], [[0.5, 0.5], [0, 0]])


@pytest.mark.heavy
def test_it_may_be_divided_by_a_std():
    groups = random_groups(5, outcomes=OUTCOMES)
    rewards = [t.episode.reward for group in groups for t in group.valid]
    scaled = credit(groups, AdvantageHypers("tree", "group", "batch"))
    np.testing.assert_allclose(scaled, credit(groups, TREE) / np.std(rewards), rtol=1e-4)

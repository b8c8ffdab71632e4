import dataclasses

import numpy as np
import pytest

from ale_jax.algo.advantages import Credit
from ale_jax.config.algo import AdvantageHypers, AlgoConfig
from ale_jax.config.credit import CONVERSATION, EPISODE, CreditHypers
from ale_jax.config.learn import Shape
from ale_jax.config.loss import LossHypers
from ale_jax.data.packing import pack_all
from ale_jax.data.replay import Group
from ale_jax.learn.credit import credited_samples, tabulate_rewards
from ale_jax.learn.learner import assemble
from ale_jax.records import SideBranch
from ale_jax.status import Status
from tests.data.make_trajectories import make_trajectory, make_turn


def turns(*rewards):
    return [make_turn([1], [2], reward=r) for r in rewards]


GROUPS = [
    Group(
        7,
        (
            make_trajectory(7, 0, turns(0.0, 1.0)),
            make_trajectory(7, 1, turns(0.5), reward=0.5),
        ),
    ),
    Group(
        9,
        (
            make_trajectory(9, 0, turns(0.0), status=Status.SANDBOX_LOST, reward=None),
            make_trajectory(9, 1, (), status=Status.TOKEN_LIMIT, reward=0.0),
        ),
    ),
]


def test_one_row_per_member_whatever_its_fate():
    rewards = tabulate_rewards(GROUPS, max_chunks=3).rewards
    np.testing.assert_array_equal(rewards.reward_NC, [[0, 1, 0], [0.5, 0, 0], [0, 0, 0], [0, 0, 0]])
    np.testing.assert_array_equal(rewards.outcome_N, [1, 0.5, 0, 0])
    np.testing.assert_array_equal(rewards.num_chunks_N, [2, 1, 1, 0])
    np.testing.assert_array_equal(rewards.group_N, [0, 0, 1, 1])
    np.testing.assert_array_equal(rewards.valid_N, [True, True, False, True])
    np.testing.assert_array_equal(rewards.tokens_NC, [[1, 1, 0], [1, 0, 0], [1, 0, 0], [0, 0, 0]])


def test_an_outcome_is_what_the_sampled_chunks_earned():
    """The rewards of a prefix, which others wrote, are in the episode's and in no chunk's."""
    member = make_trajectory(7, 0, turns(0.25, -0.5, 1.0), reward=0.75)
    key = dataclasses.replace(member.episode.key, num_prefix_turns=1)
    episode = dataclasses.replace(member.episode, key=key, step_rewards=(0.25, -0.5, 1.0))
    member = dataclasses.replace(member, episode=episode, num_prefix_turns=1)
    rewards = tabulate_rewards([Group(7, (member,))], max_chunks=3).rewards
    np.testing.assert_array_equal(rewards.reward_NC, [[-0.5, 1.0, 0.0]])
    np.testing.assert_array_equal(rewards.outcome_N, [0.5])


def test_credit_goes_back_to_the_valid_trajectories():
    table = tabulate_rewards(GROUPS, max_chunks=3)
    advantage_NC = np.arange(12, dtype=np.float32).reshape(4, 3)
    samples = credited_samples(table, Credit(advantage_NC, -advantage_NC), AlgoConfig())
    assert [s.advantage_C.tolist() for s in samples] == [[0, 1], [3], []]
    assert [s.reward_C.tolist() for s in samples] == [[0, -1], [-3], []]
    assert [(s.group, s.member) for s in samples] == [(0, 0), (0, 1), (1, 1)]


def with_a_side_branch():
    """Four replies in two conversations, which share the first. The second one was on the side."""
    first, on_the_side, second, third = (
        dataclasses.replace(make_turn([9], [n] * n, reward=float(n == 4)), number=n - 1)
        for n in (1, 2, 3, 4)
    )
    experts, others = (np.full((n, 1, 1), n, np.int16) for n in (11, 5))
    return dataclasses.replace(
        make_trajectory(7, 2, (first, second, third)),
        expert_TLK=experts,
        side_branches=(SideBranch((first, on_the_side), num_prefix_turns=1, expert_TLK=others),),
    )


def test_the_chunks_of_all_conversations_are_one_row_in_the_order_of_their_replies():
    member = with_a_side_branch()
    table = tabulate_rewards([Group(7, (member,))], max_chunks=5)
    np.testing.assert_array_equal(table.rewards.tokens_NC, [[1, 2, 3, 4, 0]])
    np.testing.assert_array_equal(table.rewards.reward_NC, [[0, 0, 0, 1, 0]])
    np.testing.assert_array_equal(table.rewards.num_chunks_N, [4])
    advantage_NC = np.array([[1, 2, 3, 4, 99]], np.float32)
    reward_NC = np.array([[0, 0, 0, 0.5, 99]], np.float32)  # as if a failure's cost had been added
    longest, side = credited_samples(table, Credit(advantage_NC, reward_NC), AlgoConfig())
    assert longest.advantage_C.tolist() == [1, 3, 4] and side.advantage_C.tolist() == [2]
    assert longest.reward_C.tolist() == [0, 0, 0.5]
    assert (side.group, side.member, side.num_prefix_turns) == (0, 2, 1)
    assert longest.expert_TLK is member.expert_TLK and side.expert_TLK.shape[0] == 5
    (batch,) = pack_all([longest, side], Shape(1, 64, 5))
    ids = [int(i) for turn in member.sampled_turns for i in turn.action_ids]
    assert sorted(batch.tokens_BT[batch.chunk_BT >= 0]) == sorted(ids)


@pytest.mark.parametrize(
    ("estimator", "left"),
    # After the chunk on the side: two chunks, or 3 + 4 tokens.
    [("turn_gae", 0.5**2), ("gae", 0.5**7), ("token_return", 0.5**7)],
)
def test_a_conversation_on_the_side_ends_with_what_came_of_it_later(estimator, left):
    algo = AlgoConfig(gamma=0.5, advantage=AdvantageHypers(estimator, mean="batch"))
    table = tabulate_rewards([Group(7, (with_a_side_branch(),))], max_chunks=4)
    rewards = np.asarray(table.rewards.reward_NC)
    longest, side = credited_samples(table, Credit(rewards, rewards), algo)
    assert longest.reward_C.tolist() == [0, 0, 1] and side.reward_C.tolist() == [left]


@pytest.mark.parametrize(
    ("trajectory", "aggregation", "weights"),
    [
        (EPISODE, "trajectory_means", [0.8, 0.2]),  # 8 and 2 of the 10 tokens
        (CONVERSATION, "trajectory_means", [1, 1]),
        (EPISODE, "tokens", [1, 1]),
    ],
)
def test_the_conversations_of_an_episode_share_the_weight_of_one(trajectory, aggregation, weights):
    loss, credit = LossHypers(aggregation=aggregation), CreditHypers(trajectory=trajectory)
    step = assemble(
        [Group(7, (with_a_side_branch(), make_trajectory(7, 3, turns(0.0), reward=0.0)))],
        AlgoConfig(loss=loss, credit=credit),
        Shape(1, 64, 5),
    )
    assert [sample.weight for sample in step.samples] == [*weights, 1]
    (share,) = step.minibatches
    counts = {"tokens": 11, "trajectory_means": 3 if trajectory == CONVERSATION else 2}
    assert share.loss_denominator == counts[aggregation]


def test_text_turns_earn_nothing():
    member = make_trajectory(7, 0, turns(5.0, 0.0, 1.0))
    member = dataclasses.replace(member, num_prefix_turns=1)
    rewards = tabulate_rewards([Group(7, (member,))], max_chunks=2).rewards
    np.testing.assert_array_equal(rewards.reward_NC, [[0, 1]])
    np.testing.assert_array_equal(rewards.num_chunks_N, [2])
    np.testing.assert_array_equal(rewards.tokens_NC, [[1, 1]])


def saw(member, *observations, group=0, family="fake", num_prefix_turns=0):
    """A trajectory that was shown these, in answer to words of its own."""
    made = [
        dataclasses.replace(make_turn([1], [2]), prompt_text=text, action_text=f"{member}")
        for text in observations
    ]
    trajectory = make_trajectory(group, member, made)
    key = trajectory.episode.key
    key = dataclasses.replace(key, task=dataclasses.replace(key.task, family=family))
    episode = dataclasses.replace(trajectory.episode, key=key)
    return dataclasses.replace(trajectory, episode=episode, num_prefix_turns=num_prefix_turns)


def test_an_anchor_is_a_group_and_all_that_it_saw():
    first = Group(0, (saw(0, "task", "a", "end"), saw(1, "task", "b", "end"), saw(2, "task", "a")))
    second = Group(1, (saw(0, "task", group=1), saw(1, "task", group=1)))
    rewards = tabulate_rewards([first, second], max_chunks=3).rewards
    # "end" after "a" is not "end" after "b"; the second group's task is another.
    np.testing.assert_array_equal(
        rewards.anchor_NC, [[0, 0, 0], [0, 1, 1], [0, 0, 0], [3, 0, 0], [3, 0, 0]]
    )


def test_a_node_is_a_group_and_all_that_it_did_and_saw():
    def did(member, *actions, group=0):
        seen = saw(member, *["task", "", ""][: len(actions)], group=group)
        acted = [dataclasses.replace(t, action_text=a) for t, a in zip(seen.turns, actions)]
        return dataclasses.replace(seen, turns=tuple(acted))

    first = Group(0, (did(0, "a", "c", "x"), did(1, "b", "c", "x"), did(2, "a", "c"), did(3, "a")))
    second = Group(1, (did(0, "a", "c", group=1),))
    rewards = tabulate_rewards([first, second], max_chunks=3).rewards
    expected = [[0, 0, 0], [0, 1, 1], [0, 0, 0], [0, 0, 0], [4, 4, 0]]
    np.testing.assert_array_equal(rewards.node_NC, expected)
    np.testing.assert_array_equal(rewards.anchor_NC[:4], np.zeros((4, 3)))  # they saw the same


def test_a_state_of_few_observations_may_come_at_any_time():
    group = Group(0, (saw(0, "task", "x", "y"), saw(1, "task", "y", "y"), saw(2, "x", "y")))
    groups = [group, Group(1, (saw(0, "task", group=1),))]
    rewards = tabulate_rewards(groups, 3, anchor_depth=2).rewards
    of_one = [[0, 1, 2], [0, 2, 2], [1, 2, 8], [9, 10, 11]]
    np.testing.assert_array_equal(rewards.anchor_NCH[:, :, 0], of_one)
    # "x" and "y" follow each other in members 0 and 2; the first chunk of each is in no such state.
    of_two = [[0, 1, 2], [3, 4, 5], [6, 2, 8], [9, 10, 11]]
    np.testing.assert_array_equal(rewards.anchor_NCH[:, :, 1], of_two)
    assert tabulate_rewards([group], 3).rewards.anchor_NCH.shape == (3, 3, 0)


def test_a_prefix_is_part_of_the_last_observations():
    group = Group(0, (saw(0, "a", "x", num_prefix_turns=1), saw(1, "b", "x", num_prefix_turns=1)))
    anchor_NCH = tabulate_rewards([group], 1, anchor_depth=2).rewards.anchor_NCH
    np.testing.assert_array_equal(anchor_NCH, [[[0, 0]], [[0, 1]]])


def test_anchors_are_of_sampled_chunks():
    group = Group(
        0, (saw(0, "task", "a", num_prefix_turns=1), saw(1, "task", "a", num_prefix_turns=1))
    )
    np.testing.assert_array_equal(tabulate_rewards([group], 1).rewards.anchor_NC, [[0], [0]])


def test_tags_number_the_families_as_they_come():
    groups = [
        Group(i, (saw(0, "task", group=i, family=f),))
        for i, f in enumerate(("sort", "log", "sort"))
    ]
    table = tabulate_rewards(groups, max_chunks=1)
    np.testing.assert_array_equal(table.rewards.tag_N, [0, 1, 0])
    np.testing.assert_array_equal(table.tag_G, [0, 1, 0])


def test_too_many_chunks_are_refused_with_the_remedy():
    with pytest.raises(ValueError, match="2 chunks but chunks_per_pack is 1: raise it"):
        tabulate_rewards(GROUPS, max_chunks=1)

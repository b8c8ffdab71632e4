import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale_jax.algo.advantages import Rewards, credit_chunks
from ale_jax.config.algo import AdvantageHypers

IPA = AdvantageHypers("chunk_return", "group", "none")
GRPO = AdvantageHypers("outcome", "group", "group")


def make_rewards(
    outcome_N, num_chunks_N, group_N, valid_N=None, anchor_NC=None, tokens_NC=None, max_chunks=3
):
    """The outcome on the last of each trajectory's chunks; one family per two groups."""
    reward_NC = np.zeros((len(outcome_N), max_chunks), np.float32)
    for n, (outcome, chunks) in enumerate(zip(outcome_N, num_chunks_N)):
        if chunks:
            reward_NC[n, chunks - 1] = outcome
    valid_N = [True] * len(outcome_N) if valid_N is None else valid_N
    anchor_NC = np.zeros(reward_NC.shape, np.int32) if anchor_NC is None else anchor_NC
    tokens_NC = np.ones(reward_NC.shape, np.int32) if tokens_NC is None else tokens_NC
    return Rewards(
        jnp.asarray(reward_NC),
        jnp.array(outcome_N, jnp.float32),
        jnp.array(num_chunks_N),
        jnp.array(group_N),
        jnp.array(group_N) // 2,
        jnp.array(valid_N),
        jnp.asarray(anchor_NC),
        jnp.zeros(reward_NC.shape, int),
        jnp.asarray(tokens_NC),
    )


def credit(outcome_N, num_chunks_N, group_N, hp=IPA, gamma=0.5, **more):
    rewards = make_rewards(outcome_N, num_chunks_N, group_N, **more)
    return credit_chunks(rewards, max(group_N) + 1, gamma, hp)


def credit_of_group(outcomes, num_chunks, hp=IPA, gamma=0.5, size=9):
    """The advantages of one group, after which come lost members, so that all have one shape."""
    lost = size - len(outcomes)
    valid_N = [True] * len(outcomes) + [False] * lost
    found = credit(
        outcomes + [1.0] * lost, [num_chunks] * size, [0] * size, hp, gamma, valid_N=valid_N
    )
    return np.asarray(found.advantage_NC)[: len(outcomes)]


@pytest.mark.heavy
@settings(deadline=None, max_examples=30)
@given(st.floats(-2, 2, width=32), st.integers(1, 9))
def test_a_group_of_equals_teaches_exactly_nothing(outcome, size):
    assert not credit_of_group([outcome] * size, 2).any()


def test_ipa_baseline_meets_the_outcome_before_the_discount():
    found = credit([1.0, 0.0], [2, 3], [0, 0])
    np.testing.assert_array_equal(found.advantage_NC, [[0.25, 0.5, 0.0], [-0.125, -0.25, -0.5]])
    np.testing.assert_array_equal(found.reward_NC, [[0, 1, 0], [0, 0, 0]])


def test_ipa_without_baseline_is_eq7():
    found = credit([1.0, 0.0], [2, 3], [0, 0], AdvantageHypers("chunk_return", "none", "none"))
    np.testing.assert_array_equal(found.advantage_NC, [[0.5, 1.0, 0.0], [0.0, 0.0, 0.0]])


def test_ipa_over_the_std_of_the_outcomes():
    hp = AdvantageHypers("chunk_return", "group", "batch")
    found = credit([3.0, 1.0, 2.0, 2.0], [2, 1, 1, 1], [0, 0, 1, 1], hp)
    std = 0.5**0.5  # of 3 1 2 2
    np.testing.assert_allclose(
        found.advantage_NC[:2], np.array([[0.5, 1, 0], [-1, 0, 0]]) / std, rtol=1e-5
    )
    assert not found.advantage_NC[2:].any()


@pytest.mark.parametrize("mean", ["none", "group"])  # the group's is 0
def test_failure_reward_is_an_outcome_like_any_other(mean):
    hp = AdvantageHypers("chunk_return", mean, "none", failure_reward=-1.0)
    found = credit([1.0, 0.0], [1, 2], [0, 0], hp)
    np.testing.assert_array_equal(found.advantage_NC, [[1.0, 0, 0], [-0.5, -1.0, 0]])
    np.testing.assert_array_equal(found.reward_NC, [[1.0, 0, 0], [0, -1.0, 0]])


def test_whatever_is_not_positive_is_a_failure_and_a_part_of_the_reward_is_none():
    hp = AdvantageHypers("outcome", "none", "none", failure_reward=-1.0)
    found = credit([0.25, 0.0, -0.5], [1, 1, 1], [0, 0, 0], hp)
    for each_NC in found:
        np.testing.assert_array_equal(each_NC[:, 0], [0.25, -1.0, -1.5])


def test_partial_reward_below_the_mean_is_pushed_down():
    found = credit([1.0, 0.5], [1, 1], [0, 0])
    np.testing.assert_array_equal(found.advantage_NC[:, 0], [0.25, -0.25])


@pytest.mark.parametrize("estimator", ["chunk_return", "outcome", "step"])
def test_invalid_member_has_no_credit_and_no_influence(estimator):
    hp = AdvantageHypers(estimator, "group", "none")
    alone = credit([1.0, 0.0], [2, 2], [0, 0], hp)
    joined = credit([1.0, 0.0, 1.0], [2, 2, 2], [0, 0, 0], hp, valid_N=[True, True, False])
    np.testing.assert_array_equal(joined.advantage_NC[:2], alone.advantage_NC)
    np.testing.assert_array_equal(joined.advantage_NC[2], [0.0, 0.0, 0.0])


def test_trajectory_without_chunks_still_counts_in_the_mean():
    found = credit([1.0, 0.0], [1, 0], [0, 0])
    np.testing.assert_array_equal(found.advantage_NC, [[0.5, 0.0, 0.0], [0.0, 0.0, 0.0]])


def test_grpo_standardises_within_the_group():
    found = credit([3.0, 1.0, 5.0, 5.0], [2, 1, 1, 1], [0, 0, 1, 1], GRPO)
    expected = [[1.0, 1.0, 0], [-1.0, 0.0, 0], [0.0, 0.0, 0], [0.0, 0.0, 0]]  # mean 2, std 1
    np.testing.assert_allclose(found.advantage_NC, expected, atol=2e-6)


def test_dr_grpo_leaves_the_std_out_and_rloo_compares_with_the_others():
    for mean, expected in (("group", [2.0, -2.0]), ("leave_one_out", [4.0, -4.0])):
        hp = AdvantageHypers("outcome", mean, "none")
        found = credit([4.0, 0.0, 9.0], [1, 1, 1], [0, 0, 0], hp, valid_N=[True, True, False])
        np.testing.assert_array_equal(found.advantage_NC[:, 0], [*expected, 0])


def test_gamma_one_makes_ipa_dr_grpo():
    args = [1.0, 0.0, 0.0, 1.0], [2, 1, 2, 1], [0, 0, 0, 0]
    theirs = credit(*args, AdvantageHypers("outcome", "group", "none"))
    np.testing.assert_allclose(credit(*args, gamma=1.0).advantage_NC, theirs.advantage_NC)


def test_steps_are_compared_with_the_steps_of_their_group():
    # Returns 1/2 1 and 0 0 0 in group 0, 1 in group 1; means 0.3 and 1.
    hp = AdvantageHypers("step", "group", "none")
    found = credit([1.0, 0.0, 1.0], [2, 3, 1], [0, 0, 1], hp)
    expected = [[0.2, 0.7, 0], [-0.3, -0.3, -0.3], [0, 0, 0]]
    np.testing.assert_allclose(found.advantage_NC, expected, atol=1e-6)
    scaled = credit(
        [1.0, 0.0, 1.0], [2, 3, 1], [0, 0, 1], AdvantageHypers("step", "group", "group")
    )
    std = ((0.04 + 0.49 + 3 * 0.09) / 5) ** 0.5
    np.testing.assert_allclose(scaled.advantage_NC, np.array(expected) / std, atol=1e-5)


def test_gigpo_by_hand():
    """Three members; the first chunk of all starts in one state, the second of 0 and 1 in another,
    that of 2 in its own. Returns: 1/2 1; 0 0; 0 0."""
    anchor_NC = np.array([[0, 0, 0], [0, 0, 0], [0, 2, 0]], np.int32)
    hp = AdvantageHypers("gigpo", "group", "none", anchor_weight=2.0)
    found = credit([1.0, 0.0, 0.0], [2, 2, 2], [0, 0, 0], hp, anchor_NC=anchor_NC)
    # Episodes: 2/3, -1/3, -1/3. First chunks: mean 1/6. Second: mean 1/2 of two; alone 0.
    step = np.array([[1 / 3, 1 / 2], [-1 / 6, -1 / 2], [-1 / 6, 0]])
    expected = np.array([[2 / 3], [-1 / 3], [-1 / 3]]) + 2 * step
    np.testing.assert_allclose(found.advantage_NC[:, :2], expected, atol=1e-6)
    assert not found.advantage_NC[:, 2].any()


def test_gigpo_without_its_steps_would_be_grpo():
    args = [3.0, 1.0, 5.0, 5.0], [2, 1, 1, 1], [0, 0, 1, 1]
    alone = np.arange(4, dtype=np.int32)[:, None] * np.ones(3, np.int32)  # nobody met a peer
    hp = AdvantageHypers("gigpo", "group", "group", anchor_weight=1.0)
    found = credit(*args, hp, anchor_NC=alone)
    np.testing.assert_array_equal(found.advantage_NC, credit(*args, GRPO).advantage_NC)


def test_advantages_are_clipped_last():
    hp = AdvantageHypers("outcome", "group", "none", clip=0.75)
    found = credit([3.0, 1.0, 2.5, 1.5], [1] * 4, [0, 0, 1, 1], hp)
    np.testing.assert_array_equal(found.advantage_NC[:, 0], [0.75, -0.75, 0.5, -0.5])


def test_tokens_are_credited_later():
    hp = AdvantageHypers("token_return", "batch", "batch", failure_reward=-1.0)
    found = credit([1.0, 0.0], [1, 1], [0, 0], hp)
    assert not found.advantage_NC.any()
    np.testing.assert_array_equal(found.reward_NC[:, 0], [1, -1])


def test_jit_equals_eager():
    rewards = make_rewards([1.0, 0.0, 0.5], [2, 1, 3], [0, 0, 0])
    for estimator in ("chunk_return", "outcome", "step"):
        hp = AdvantageHypers(estimator, "group", "group")
        eager = credit_chunks(rewards, 1, 0.9, hp)
        jitted = jax.jit(credit_chunks, static_argnums=(1, 2, 3))(rewards, 1, 0.9, hp)
        np.testing.assert_allclose(eager.advantage_NC, jitted.advantage_NC, rtol=1e-5, atol=1e-6)

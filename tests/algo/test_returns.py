import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale_jax.algo import returns
from ale_jax.algo.grpo import GrpoHypers
from ale_jax.algo.ipa import IpaHypers


def last_chunk(outcome_N, num_chunks_N, max_chunks):
    """The outcome on the last of each trajectory's chunks."""
    reward_NC = np.zeros((len(outcome_N), max_chunks), np.float32)
    for n, (outcome, chunks) in enumerate(zip(outcome_N, num_chunks_N)):
        if chunks:
            reward_NC[n, chunks - 1] = outcome
    return jnp.asarray(reward_NC)


def ipa(outcome_N, num_chunks_N, group_N, hp, valid_N=None, max_chunks=3):
    num_groups = max(group_N) + 1
    valid_N = [True] * len(outcome_N) if valid_N is None else valid_N
    return returns.ipa_advantages(
        last_chunk(outcome_N, num_chunks_N, max_chunks),
        jnp.array(outcome_N, jnp.float32),
        jnp.array(num_chunks_N),
        jnp.array(group_N),
        jnp.array(valid_N),
        num_groups,
        hp,
    )


def test_eq7_outcome_is_discounted_once_per_chunk():
    reward_NC = jnp.array([[0.0, 0.0, 1.0], [0.0, 2.0, 0.0]])
    return_NC = returns.chunk_returns(reward_NC, jnp.array([3, 2]), gamma=0.5)
    np.testing.assert_array_equal(return_NC, [[0.25, 0.5, 1.0], [1.0, 2.0, 0.0]])


def test_process_rewards_accumulate():
    return_NC = returns.chunk_returns(jnp.array([[1.0, 0.0, 4.0]]), jnp.array([3]), gamma=0.5)
    np.testing.assert_array_equal(return_NC, [[2.0, 2.0, 4.0]])


@pytest.mark.parametrize("padding", [7.0, np.nan, np.inf])
def test_padding_has_no_influence(padding):
    reward_NC = jnp.array([[0.0, 1.0, padding], [padding, padding, padding]])
    return_NC = returns.chunk_returns(reward_NC, jnp.array([2, 0]), gamma=0.5)
    np.testing.assert_array_equal(return_NC, [[0.5, 1.0, 0.0], [0.0, 0.0, 0.0]])


def test_baseline_leaves_out_what_the_system_lost():
    outcome_N = jnp.array([1.0, 0.0, 99.0, 1.0, 5.0])
    group_N = jnp.array([0, 0, 0, 1, 2])
    valid_N = jnp.array([True, True, False, True, False])
    baseline_N = returns.group_mean_baseline(outcome_N, group_N, valid_N, 3)
    np.testing.assert_array_equal(baseline_N, [0.5, 0.5, 0.5, 1.0, 0.0])


@settings(deadline=None, max_examples=30)
@given(st.floats(-2, 2, width=32), st.integers(1, 9))
def test_a_group_of_equals_teaches_exactly_nothing(outcome, size):
    """Exactly: 0.1 summed three times and divided by 3 is not 0.1 in float32."""
    credit = ipa([outcome] * size, [2] * size, [0] * size, IpaHypers())
    np.testing.assert_array_equal(credit.advantage_NC, np.zeros((size, 3)))
    assert not credit.positive_N.any()


def test_ipa_baseline_meets_the_outcome_before_the_discount():
    credit = ipa([1.0, 0.0], [2, 3], [0, 0], IpaHypers(gamma=0.5))
    np.testing.assert_array_equal(credit.advantage_NC, [[0.25, 0.5, 0.0], [-0.125, -0.25, -0.5]])
    np.testing.assert_array_equal(credit.positive_N, [True, False])


def test_ipa_without_baseline_is_eq7():
    credit = ipa([1.0, 0.0], [2, 3], [0, 0], IpaHypers(gamma=0.5, baseline="none"))
    np.testing.assert_array_equal(credit.advantage_NC, [[0.5, 1.0, 0.0], [0.0, 0.0, 0.0]])
    np.testing.assert_array_equal(credit.positive_N, [True, False])


def test_failure_reward_is_an_outcome_like_any_other():
    hp = IpaHypers(gamma=0.5, baseline="none", failure_reward=-1.0)
    np.testing.assert_array_equal(
        ipa([1.0, 0.0], [1, 2], [0, 0], hp).advantage_NC, [[1.0, 0, 0], [-0.5, -1.0, 0]]
    )
    hp = IpaHypers(gamma=0.5, failure_reward=-1.0)  # group mean 0
    np.testing.assert_array_equal(
        ipa([1.0, 0.0], [1, 2], [0, 0], hp).advantage_NC, [[1.0, 0, 0], [-0.5, -1.0, 0]]
    )


def test_partial_reward_below_the_mean_is_not_positive():
    credit = ipa([1.0, 0.5], [1, 1], [0, 0], IpaHypers())
    np.testing.assert_array_equal(credit.positive_N, [True, False])


def test_invalid_member_has_no_credit_and_no_influence():
    alone = ipa([1.0, 0.0], [2, 2], [0, 0], IpaHypers())
    joined = ipa([1.0, 0.0, 1.0], [2, 2, 2], [0, 0, 0], IpaHypers(), valid_N=[True, True, False])
    np.testing.assert_array_equal(joined.advantage_NC[:2], alone.advantage_NC)
    np.testing.assert_array_equal(joined.advantage_NC[2], [0.0, 0.0, 0.0])
    assert not joined.positive_N[2]


def test_trajectory_without_chunks_still_counts_in_the_mean():
    credit = ipa([1.0, 0.0], [1, 0], [0, 0], IpaHypers())
    np.testing.assert_array_equal(credit.advantage_NC, [[0.5, 0.0, 0.0], [0.0, 0.0, 0.0]])


def grpo(outcome_N, num_chunks_N, group_N, hp, valid_N):
    return returns.grpo_advantages(
        jnp.array(outcome_N), jnp.array(num_chunks_N), jnp.array(group_N), jnp.array(valid_N),
        max(group_N) + 1, 2, hp,
    )  # fmt: skip


def test_grpo_standardises_within_the_group():
    credit = grpo([3.0, 1.0, 5.0, 5.0], [2, 1, 1, 1], [0, 0, 1, 1], GrpoHypers(), [True] * 4)
    expected = [[1.0, 1.0], [-1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]  # mean 2, std 1
    np.testing.assert_allclose(credit.advantage_NC, expected, atol=2e-6)


def test_grpo_ignores_invalid_members_and_can_leave_std_out():
    hp = GrpoHypers(scale_by_std=False)
    credit = grpo([4.0, 0.0, 9.0], [1, 1, 1], [0, 0, 0], hp, [True, True, False])
    np.testing.assert_array_equal(credit.advantage_NC, [[2.0, 0], [-2.0, 0], [0, 0]])


def test_gamma_one_equals_grpo_without_std():
    outcome_N, chunks_N, group_N = [1.0, 0.0, 0.0, 1.0], [2, 1, 2, 1], [0, 0, 0, 0]
    ours = ipa(outcome_N, chunks_N, group_N, IpaHypers(gamma=1.0), max_chunks=2)
    theirs = grpo(outcome_N, chunks_N, group_N, GrpoHypers(scale_by_std=False), [True] * 4)
    np.testing.assert_allclose(ours.advantage_NC, theirs.advantage_NC)


def test_jit_equals_eager():
    reward_NC = jnp.array([[0.0, 1.0], [0.5, 0.0]])
    args = (
        reward_NC, reward_NC.sum(axis=1), jnp.array([2, 1]), jnp.array([0, 0]),
        jnp.array([True, True]), 1, IpaHypers(),
    )  # fmt: skip
    eager = returns.ipa_advantages(*args)
    jitted = jax.jit(returns.ipa_advantages, static_argnums=(5, 6))(*args)
    np.testing.assert_allclose(eager.advantage_NC, jitted.advantage_NC, rtol=1e-6)
    np.testing.assert_array_equal(eager.positive_N, jitted.positive_N)

"""A group's negative side, weighed in tokens against its positive side."""

import numpy as np
import pytest

from ale_jax.algo.advantages import credit_chunks
from ale_jax.config.algo import AdvantageHypers
from tests.algo.test_advantages import credit, make_rewards

PLAIN = AdvantageHypers("outcome", "group", "none")
BALANCED = AdvantageHypers("outcome", "group", "none", balance="group")


def by_loops(advantage_NC, tokens_NC, group_N, valid_N):
    """A < 0 times min(1, P / N), with P and N the sums of |A| over the tokens of a group."""
    balanced_NC = np.array(advantage_NC, np.float64)
    for group in set(group_N):
        own_N = (np.array(group_N) == group) & np.array(valid_N)
        mass_NC = balanced_NC[own_N] * tokens_NC[own_N]
        up, down = mass_NC[mass_NC > 0].sum(), -mass_NC[mass_NC < 0].sum()
        factor = min(1.0, up / down) if down else 1.0
        rows = balanced_NC[own_N]
        balanced_NC[own_N] = np.where(rows < 0, factor * rows, rows)
    return balanced_NC


@pytest.mark.heavy
@pytest.mark.parametrize("estimator", ["outcome", "chunk_return", "step"])
def test_the_negative_side_weighs_no_more_than_the_positive(estimator):
    rng = np.random.default_rng(0)
    size, groups = 24, 4
    group_N, valid_N = np.arange(size) % groups, rng.random(size) < 0.9
    tokens_NC = rng.integers(1, 50, (size, 3)).astype(np.int32)
    args = rng.random(size).round(1).tolist(), rng.integers(1, 4, size).tolist(), group_N.tolist()
    rewards = make_rewards(*args, valid_N=valid_N, tokens_NC=tokens_NC)
    plain_NC, balanced_NC = (
        credit_chunks(rewards, groups, 0.9, AdvantageHypers(estimator, balance=each))[0]
        for each in ("none", "group")
    )
    expected_NC = by_loops(np.asarray(plain_NC), tokens_NC, group_N, valid_N)
    np.testing.assert_allclose(balanced_NC, expected_NC, atol=1e-5)
    assert not np.allclose(balanced_NC, plain_NC)
    for group in range(groups):
        net = (np.asarray(balanced_NC) * tokens_NC)[group_N == group].sum()
        assert net > -1e-4


def test_by_hand():
    """A success of 1 chunk of 2 tokens against two failures of 3 chunks of 5 tokens."""
    tokens_NC = np.array([[2, 0, 0], [5, 5, 5], [5, 5, 5]], np.int32)
    args = [1.0, 0.0, 0.0], [1, 3, 3], [0, 0, 0]
    found_NC = credit(*args, BALANCED, tokens_NC=tokens_NC).advantage_NC
    # Advantages 2/3, -1/3, -1/3; P = 4/3, N = 10.
    less = -1 / 3 * (4 / 3) / 10
    expected = [[2 / 3, 0, 0], [less] * 3, [less] * 3]
    np.testing.assert_allclose(found_NC, expected, rtol=1e-5)


@pytest.mark.heavy
def test_a_group_that_is_pushed_up_is_left_as_it_is():
    tokens_NC = np.array([[9, 9, 0], [1, 0, 0]], np.int32)
    args = [1.0, 0.0], [2, 1], [0, 0]
    found = credit(*args, BALANCED, tokens_NC=tokens_NC)
    plain = credit(*args, PLAIN, tokens_NC=tokens_NC)
    np.testing.assert_array_equal(found.advantage_NC, plain.advantage_NC)
    assert (found.advantage_NC < 0).any()


@pytest.mark.heavy
def test_a_group_without_a_positive_advantage_pushes_nothing_down():
    """There is none with a mean of the group; with none, all failures may cost."""
    args = [0.0, 0.0, 1.0, 0.0], [1, 2, 1, 1], [0, 0, 1, 1]
    costly = {"mean": "none", "failure_reward": -1.0}
    plain_NC = credit(*args, AdvantageHypers("outcome", **costly)).advantage_NC
    found_NC = credit(*args, AdvantageHypers("outcome", balance="group", **costly)).advantage_NC
    assert (plain_NC[:2, 0] == -1.0).all() and not found_NC[:2].any()
    np.testing.assert_array_equal(found_NC[2:], plain_NC[2:])
    for outcome in (0.0, 0.3):
        assert not credit([outcome] * 7, [2] * 7, [0] * 7, BALANCED).advantage_NC.any()


def test_groups_are_balanced_apart_and_lost_members_weigh_nothing():
    tokens_NC = np.array([[1], [9], [9], [1], [99]], np.int32)
    args = [1.0, 0.0, 1.0, 0.0, 0.0], [1] * 5, [0, 0, 1, 1, 1]
    more = {"valid_N": [True] * 4 + [False], "tokens_NC": tokens_NC, "max_chunks": 1}
    found_NC = credit(*args, BALANCED, **more).advantage_NC
    expected = [[0.5], [-0.5 / 9], [0.5], [-0.5], [0]]
    np.testing.assert_allclose(found_NC, expected, rtol=1e-6)


def test_what_is_clipped_weighs_what_it_is_clipped_to():
    hp = AdvantageHypers("outcome", "group", "none", clip=0.25, balance="group")
    tokens_NC = np.array([[1], [4], [4]], np.int32)
    found_NC = credit(
        [2.0, 0.0, 0.0], [1] * 3, [0] * 3, hp, tokens_NC=tokens_NC, max_chunks=1
    ).advantage_NC
    np.testing.assert_allclose(found_NC, [[0.25], [-0.25 / 8], [-0.25 / 8]], rtol=1e-6)

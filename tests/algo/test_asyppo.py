"""What several critics say of a token, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.algo.values import agreement_masks, critic_loss, critic_of, explained_variance
from tests.rows import each_row


def test_members_of_a_group_are_divided_evenly_and_disjointly():
    found = critic_of(np.array([[0, 0, 1, 2], [3, 4, -1, -1]]), 2)
    np.testing.assert_array_equal(found, [[0, 0, 1, 0], [1, 0, -1, -1]])


VALUE = jnp.float32([[1.0, 2.0, 3.0]])
RETURN = jnp.float32([[0.0, 4.0, jnp.nan]])
OWN = jnp.array([[True, True, False]])


def test_the_loss_by_hand():
    loss, sums = critic_loss(VALUE, RETURN, OWN, 4.0)
    assert loss == (1.0 + 4.0) / 4.0
    assert sums == {"tokens": 2.0, "squares": 5.0}


def test_the_gradient_is_of_the_own_tokens_alone_and_finite():
    grad = jax.grad(lambda value: critic_loss(value, RETURN, OWN, 4.0)[0])(VALUE)
    np.testing.assert_allclose(grad, [[2 * 1 / 4, 2 * -2 / 4, 0.0]])
    assert not jax.grad(lambda v: critic_loss(v, RETURN, OWN & False, 1.0)[0])(VALUE).any()


def test_a_masked_loss_is_the_loss_of_what_is_left():
    draw = np.random.default_rng(0)
    value_BT, return_BT = draw.random((2, 3, 7)).astype(np.float32)
    own_BT = draw.random((3, 7)) < 0.5
    whole, _ = critic_loss(value_BT, return_BT, own_BT, 1.0)
    left, _ = critic_loss(value_BT[own_BT], return_BT[own_BT], own_BT[own_BT], 1.0)
    np.testing.assert_allclose(whole, left, rtol=1e-6)


def test_the_lowest_spread_teaches_nothing_and_the_highest_is_not_explored():
    spread_U = np.array([0.5, 0.1, 0.9, 0.2, 0.3])
    teaches_U, explores_U = agreement_masks(spread_U, 0.4, 0.2)  # two of five, one of five
    np.testing.assert_array_equal(teaches_U, [True, False, True, False, True])
    np.testing.assert_array_equal(explores_U, [True, True, False, True, True])


@each_row("share, masked", [(0.0, 0), (0.19, 0), (0.2, 1), (0.99, 4), (1.0, 5)])
def test_of_a_share_whole_tokens_go(share, masked):
    teaches_U, explores_U = agreement_masks(np.arange(5.0), share, share)
    assert (~teaches_U).sum() == masked and (~explores_U).sum() == masked


def test_critics_that_agree_everywhere_mask_nothing():
    teaches_U, explores_U = agreement_masks(np.zeros(10), 0.2, 0.2)
    assert teaches_U.all() and explores_U.all()


def test_a_step_without_tokens_has_no_masks():
    assert [len(mask_U) for mask_U in agreement_masks(np.zeros(0), 0.2, 0.2)] == [0, 0]


def test_explained_variance_by_hand():
    return_U = np.array([0.0, 0.0, 1.0, 1.0])  # variance 1/4
    assert explained_variance(return_U + 3.0, return_U) == 1.0
    assert explained_variance(np.full(4, 0.5), return_U) == 0.0
    # Errors 0, 0, 1, 0: variance 1/4 - 1/16 = 3/16.
    assert explained_variance(np.array([0, 0, 0, 1.0]), return_U) == pytest.approx(1 / 4)
    assert explained_variance(return_U, np.ones(4)) == 0.0
    # Of the second and the third the variance is 1/4, and errors are 0 and 1.
    own_U = np.array([False, True, True, False])
    for of in (np.asarray, jnp.asarray):
        assert explained_variance(*map(of, (0 * return_U, return_U, own_U))) == 0.0
        assert explained_variance(*map(of, (return_U, return_U, own_U))) == 1.0

import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.algo import baselines


def test_eq7_outcome_is_discounted_once_per_chunk():
    reward_NC = jnp.array([[0.0, 0.0, 1.0], [0.0, 2.0, 0.0]])
    return_NC = baselines.chunk_returns(reward_NC, jnp.array([3, 2]), gamma=0.5)
    np.testing.assert_array_equal(return_NC, [[0.25, 0.5, 1.0], [1.0, 2.0, 0.0]])


def test_process_rewards_accumulate():
    return_NC = baselines.chunk_returns(jnp.array([[1.0, 0.0, 4.0]]), jnp.array([3]), gamma=0.5)
    np.testing.assert_array_equal(return_NC, [[2.0, 2.0, 4.0]])


@pytest.mark.parametrize("padding", [7.0, np.nan, np.inf])
def test_padding_has_no_influence(padding):
    reward_NC = jnp.array([[0.0, 1.0, padding], [padding, padding, padding]])
    return_NC = baselines.chunk_returns(reward_NC, jnp.array([2, 0]), gamma=0.5)
    np.testing.assert_array_equal(return_NC, [[0.5, 1.0, 0.0], [0.0, 0.0, 0.0]])

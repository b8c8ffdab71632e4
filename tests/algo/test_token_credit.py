"""Credit of tokens by hand: GAE, REINFORCE, and what normalises them over a step."""

import jax.numpy as jnp
import numpy as np

from ale_jax.algo.baselines import scale_token_advantages, token_returns
from ale_jax.algo.values import gae
from ale_jax.config.algo import AdvantageHypers
from tests.algo.batches import f32

# Two trajectories in a row: p a a o a | p a, and padding.
CHUNK = jnp.array([[-1, 0, 0, -1, 1, -1, 2, -1]])
SEGMENT = jnp.array([[1, 1, 1, 1, 1, 2, 2, 0]])
REWARD = f32([[0, 0, 1, 0, 2, 0, 4, 0]])
VALUE = f32([[9, 1, 2, 9, 3, 9, 5, 9]])


def test_gae_by_hand():
    advantage_BT, target_BT = gae(VALUE, REWARD, CHUNK, SEGMENT, gamma=0.5, lam=0.5)
    # Of the second: 4 - 5. Of the first, backwards: 2 - 3 = -1; delta 1 + 3/2 - 2 = 1/2, and
    # 1/2 - 1/4 = 1/4; delta 0 + 2/2 - 1 = 0, and 0 + 1/16. The observation is no time step.
    np.testing.assert_allclose(advantage_BT, [[0, 1 / 16, 1 / 4, 0, -1, 0, -1, 0]])
    np.testing.assert_allclose(target_BT, [[0, 17 / 16, 9 / 4, 0, 2, 0, 4, 0]])


def test_gae_at_the_ends_of_lambda():
    td_BT, _ = gae(VALUE, REWARD, CHUNK, SEGMENT, gamma=0.5, lam=0.0)
    np.testing.assert_allclose(td_BT, [[0, 0, 0.5, 0, -1, 0, -1, 0]])
    _, target_BT = gae(VALUE, REWARD, CHUNK, SEGMENT, gamma=0.5, lam=1.0)
    # The target of lambda 1 is the return, whatever the values say.
    np.testing.assert_allclose(target_BT, [[0, 1.0, 2.0, 0, 2, 0, 4, 0]])


def test_what_lies_outside_the_policys_tokens_has_no_say():
    dirty = [jnp.where(CHUNK >= 0, x, jnp.nan) for x in (VALUE, REWARD)]
    found = gae(*dirty, CHUNK, SEGMENT, 0.9, 0.8)
    for clean, other in zip(gae(VALUE, REWARD, CHUNK, SEGMENT, 0.9, 0.8), found, strict=True):
        np.testing.assert_array_equal(clean, other)


def test_packing_two_trajectories_into_a_row_equals_two_rows():
    packed, _ = gae(VALUE, REWARD, CHUNK, SEGMENT, 0.9, 0.8)
    for part in (slice(0, 5), slice(5, 8)):
        alone, _ = gae(*(x[:, part] for x in (VALUE, REWARD, CHUNK, SEGMENT)), 0.9, 0.8)
        np.testing.assert_array_equal(alone, packed[:, part])


def test_reinforce_is_the_discounted_return_of_each_token():
    found_BT = token_returns(REWARD, CHUNK, SEGMENT, gamma=0.5)
    np.testing.assert_allclose(found_BT, [[0, 1.0, 2.0, 0, 2, 0, 4, 0]])  # 2; 1 + 2/2; 0 + 2/2


def test_tokens_are_normalised_over_the_whole_step():
    advantage_MBT = f32([[[1, 3, 100]], [[5, 7, 100]]])
    written_MBT = jnp.array([[[True, True, False]], [[True, True, False]]])
    group_MBT = jnp.array([[[0, 1, -1]], [[1, 2, -1]]])
    tag_G = jnp.array([0, 0, 1])

    def normalised(mean, std, clip=0.0):
        hp = AdvantageHypers("token_return", mean, std, clip=clip)
        return scale_token_advantages(advantage_MBT, written_MBT, group_MBT, tag_G, hp).reshape(-1)

    np.testing.assert_allclose(normalised("batch", "none"), [-3, -1, 0, 1, 3, 0])  # of both, 4
    np.testing.assert_allclose(
        normalised("batch", "batch"), np.array([-3, -1, 0, 1, 3, 0]) / 5**0.5, rtol=1e-5
    )
    np.testing.assert_allclose(normalised("group", "none"), [0, -1, 0, 1, 0, 0])
    np.testing.assert_allclose(normalised("tag", "none"), [-2, 0, 0, 2, 0, 0])
    np.testing.assert_allclose(normalised("batch", "none", clip=2.0), [-2, -1, 0, 1, 2, 0])

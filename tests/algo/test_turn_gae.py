"""GAE whose time steps are chunks, against Turn-PPO's formulas written out, and its limits."""

import jax
import jax.numpy as jnp
import numpy as np

from ale_jax.algo.values import FULL_TRUST, blend, chunk_starts, gae, over_chunks, turn_gae
from tests.algo.batches import f32
from tests.rows import each_row

# Two trajectories in each row: p a a a o b b c | p d o e e, and padding. Chunks b and c adjoin.
CHUNK = np.array([[-1, 0, 0, 0, -1, 1, 1, 2, -1, 3, -1, 4, 4, -1]] * 3)
SEGMENT = np.array([[1] * 8 + [2] * 5 + [0]] * 3)
STARTS = [1, 5, 7, 9, 11]


def numbers(seed=0):
    draw = np.random.default_rng(seed)
    return draw.normal(size=(2, *CHUNK.shape)).astype(np.float32)


def of_the_paper(value_BT, reward_BT, gamma, lam):
    """delta_h = r_h + gamma v_{h+1} - v_h and A_h = sum_k (gamma lam)^k delta_{h+k}."""
    advantage_BT, target_BT = np.zeros(CHUNK.shape), np.zeros(CHUNK.shape)
    for b in range(len(CHUNK)):
        for segment in (1, 2):
            chunks = np.unique(CHUNK[b, (SEGMENT[b] == segment) & (CHUNK[b] >= 0)])
            tokens = [np.flatnonzero(CHUNK[b] == chunk) for chunk in chunks]
            value_H = [float(value_BT[b, at[0]]) for at in tokens] + [0.0]
            delta_H = [
                float(reward_BT[b, at].sum()) + gamma * value_H[h + 1] - value_H[h]
                for h, at in enumerate(tokens)
            ]
            for h, at in enumerate(tokens):
                found = sum((gamma * lam) ** k * d for k, d in enumerate(delta_H[h:]))
                advantage_BT[b, at] = found
                target_BT[b, at[0]] = found + value_H[h]
    return advantage_BT, target_BT


@each_row("gamma, lam", [(0.99, 0.9), (0.5, 0.0), (1.0, 1.0), (0.8, 1.0)])
def test_it_is_the_papers_formula(gamma, lam):
    value_BT, reward_BT = numbers()
    found = turn_gae(value_BT, reward_BT, CHUNK, SEGMENT, gamma, lam)
    for x_BT, expected_BT in zip(found, of_the_paper(value_BT, reward_BT, gamma, lam), strict=True):
        np.testing.assert_allclose(x_BT, expected_BT, atol=1e-5)


def test_chunks_of_one_token_are_gae_to_the_last_bit():
    chunk_BT = np.array([[-1, 0, -1, 1, 2, -1, 3, 4, -1, -1, 5, 6, 7, -1]] * 3)
    value_BT, reward_BT = numbers(1)
    expected = gae(value_BT, reward_BT, chunk_BT, SEGMENT, 0.9, 0.8)
    found = turn_gae(value_BT, reward_BT, chunk_BT, SEGMENT, 0.9, 0.8)
    for x_BT, expected_BT in zip(found, expected, strict=True):
        np.testing.assert_array_equal(x_BT, expected_BT)


def test_without_values_and_discount_it_is_the_outcome_on_all_tokens():
    outcome = {1: 0.7, 2: -0.3}
    reward_BT = np.zeros(CHUNK.shape, np.float32)
    reward_BT[:, 7], reward_BT[:, 12] = outcome[1], outcome[2]
    zeros_BT = np.zeros_like(reward_BT)
    found_BT, target_BT = turn_gae(zeros_BT, reward_BT, CHUNK, SEGMENT, 1.0, 1.0)
    of_segment = np.select([SEGMENT == 1, SEGMENT == 2], [np.float32(x) for x in outcome.values()])
    np.testing.assert_array_equal(found_BT, np.where(CHUNK >= 0, of_segment, 0))
    np.testing.assert_array_equal(np.flatnonzero(target_BT[0]), STARTS)


def test_values_inside_chunks_and_what_is_outside_have_no_say():
    value_BT, reward_BT = numbers()
    dirty_value_BT = np.where(chunk_starts(CHUNK), value_BT, np.nan)
    dirty_reward_BT = np.where(CHUNK >= 0, reward_BT, np.nan)
    clean = turn_gae(value_BT, reward_BT, CHUNK, SEGMENT, 0.9, 0.8)
    found = turn_gae(dirty_value_BT, dirty_reward_BT, CHUNK, SEGMENT, 0.9, 0.8)
    for x_BT, expected_BT in zip(found, clean, strict=True):
        np.testing.assert_array_equal(x_BT, expected_BT)


def test_packing_two_trajectories_into_a_row_equals_two_rows():
    value_BT, reward_BT = numbers()
    packed_BT, _ = turn_gae(value_BT, reward_BT, CHUNK, SEGMENT, 0.9, 0.8)
    for part in (slice(0, 8), slice(8, 14)):
        alone_BT, _ = turn_gae(
            *(x[:, part] for x in (value_BT, reward_BT, CHUNK, SEGMENT)), 0.9, 0.8
        )
        np.testing.assert_array_equal(alone_BT, packed_BT[:, part])


def test_a_chunk_starts_where_another_ends():
    np.testing.assert_array_equal(np.flatnonzero(chunk_starts(CHUNK)[0]), STARTS)
    places_BT = f32(np.arange(14)[None] * np.ones((3, 1)))
    expected = [0, 1, 1, 1, 0, 5, 5, 7, 0, 9, 0, 11, 11, 0]
    np.testing.assert_array_equal(over_chunks(places_BT, CHUNK), [expected] * 3)
    found_BT = jax.jit(over_chunks)(jnp.ones(CHUNK.shape, bool), CHUNK)
    assert found_BT.dtype == bool


@each_row("explained, share", [(-0.5, 0.0), (0.0, 0.0), (FULL_TRUST / 2, 0.5), (FULL_TRUST, 1.0)])
def test_critics_are_trusted_as_far_as_they_explain_outcomes(explained, share):
    trusting, cautious = np.float32([1.0, -3.0]), np.float32([2.0, 5.0])
    found = blend(trusting, cautious, np.float32(explained))
    np.testing.assert_allclose(found, share * trusting + (1 - share) * cautious, rtol=1e-6)

"""Ratios at three levels, what filters and weighs by them, and their histogram."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.algo import policy_loss
from ale_jax.algo.ratio import exp_log_ratio, importance_weight, keep_mask, log_ratio
from ale_jax.config.algo import MismatchHypers
from ale_jax.config.loss import LossHypers
from tests.algo.batches import LN2, f32, loss_and_grad, make_batch
from tests.rows import each_row

# p a a o a | a
CHUNK = jnp.array([[-1, 0, 0, -1, 1, 2]])
SEGMENT = jnp.array([[1, 1, 1, 1, 1, 2]])
LOGP = f32([[jnp.nan, LN2, 3 * LN2, jnp.nan, -LN2, 5.0]])


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("token", [0, LN2, 3 * LN2, 0, -LN2, 5]),
        ("chunk", [0, 2 * LN2, 2 * LN2, 0, -LN2, 5]),  # the square root of 2 * 8
        ("sequence", [0, LN2, LN2, 0, LN2, 5]),  # the cube root of 2 * 8 / 2
    ],
)
def test_a_ratio_is_a_geometric_mean_and_has_its_own_tokens_gradient(level, expected):
    def ratio(logp_BT):
        return log_ratio(logp_BT, jnp.zeros_like(LOGP), CHUNK, SEGMENT, level, 3)

    np.testing.assert_allclose(ratio(LOGP), [expected], rtol=1e-6)
    weight_BT = f32([[7, 1, 2, 7, 3, 4]])
    grad_BT = jax.grad(lambda x: (weight_BT * ratio(x)).sum())(LOGP)
    np.testing.assert_array_equal(grad_BT, [[0, 1, 2, 0, 3, 4]])


def test_a_ratio_is_bounded():
    np.testing.assert_allclose(exp_log_ratio(f32([1e4, -1e4])), [math.exp(20), math.exp(-20)], 1e-6)


def test_the_filter_is_for_whole_chunks_and_one_sided_unless_told():
    gap_BT = jnp.log(f32([[1.2, 1.0, 1.19, 1.21, 1.5, 1.0, 1e-6]]))
    chunk_BT = jnp.array([[0, 0, 1, 2, 3, 3, 4]])
    segment_BT = jnp.ones_like(chunk_BT)

    def kept(**fields):
        return keep_mask(gap_BT, chunk_BT, segment_BT, 5, MismatchHypers(**fields))[0].tolist()

    # Chunk 3: sqrt(1.5) > 1.2 although one of its two tokens agrees; chunk 4: no lower bound.
    one_sided = kept(filter_level="chunk", filter_high=1.2)
    assert one_sided == [True, True, True, False, False, False, True]
    two_sided = kept(filter_level="chunk", filter_low=0.8, filter_high=1.2)
    assert two_sided == [True, True, True, False, False, False, False]
    by_token = kept(filter_level="token", filter_high=1.2)
    assert by_token[1:] == [True, True, False, False, True, True]
    assert kept(filter_level="sequence", filter_high=1.2) == [True] * 7  # 1e-6 outweighs them
    assert kept() == [True] * 7


def test_a_chunk_at_the_filters_bounds_is_kept():
    hp = MismatchHypers(filter_level="chunk", filter_low=0.5, filter_high=2.0)
    chunk_BT = jnp.array([[0, 1]])
    assert keep_mask(f32([[-LN2, LN2]]), chunk_BT, jnp.ones_like(chunk_BT), 2, hp).all()


def test_observations_are_never_kept():
    kept_BT = keep_mask(jnp.zeros_like(LOGP), CHUNK, SEGMENT, 3, MismatchHypers())
    np.testing.assert_array_equal(kept_BT, CHUNK >= 0)


def test_the_importance_weight_is_capped_above_alone():
    gap_BT = jnp.log(f32([[1, 4, 1, 1, 0.25, 1.5]]))
    hp = MismatchHypers("token", 2.0)
    weight_BT = importance_weight(gap_BT, CHUNK, SEGMENT, 3, hp)
    np.testing.assert_allclose(weight_BT, [[1, 2, 1, 1, 0.25, 1.5]], rtol=1e-6)
    by_chunk = importance_weight(gap_BT, CHUNK, SEGMENT, 3, MismatchHypers("chunk", 9.0))
    np.testing.assert_allclose(by_chunk, [[1, 2, 2, 1, 0.25, 1.5]], rtol=1e-6)
    np.testing.assert_array_equal(
        importance_weight(gap_BT, CHUNK, SEGMENT, 3, MismatchHypers()), np.ones((1, 6))
    )


@each_row(
    "aggregation, share",
    [("tokens", 1), ("chunk_means", 1 / 2), ("trajectory_means", 1 / 4)],
)
def test_filters_and_means_count_for_divergence_and_entropy_too(aggregation, share):
    """p [c0 c0] o [c1 c1] and p [c2], without advantages; pi_old / mu drops c0."""
    batch = make_batch(
        [[-1, 0, 0, -1, 1, 1, -1, 2]], [[1] * 6 + [2] * 2], logp_mu_BC=[[-LN2, 0, 0]]
    )
    terms = {"kl_weight": 0.1, "kl_estimator": "k2", "entropy_weight": 0.5}
    hp = LossHypers("vanilla", aggregation=aggregation, **terms)
    mask = MismatchHypers(filter_level="chunk", filter_high=1.2)
    logp_BT, entropy_BT = f32([[0, -1, -2, 0, -3, -1, 0, -4]]), f32([[9, 1, 2, 9, 6, 2, 9, 5]])
    value, _, grad_BT = loss_and_grad(logp_BT, batch, hp, mask, 2.0, entropy_BT)
    # 0.1 log(pi)^2 / 2 - 0.5 H: of c1 0.45 - 3 and 0.05 - 1, of c2 0.8 - 2.5.
    np.testing.assert_allclose(value, (-3.5 * share - 1.7) / 2, rtol=1e-5)
    expected = [[0, 0, 0, 0, -0.3 * share, -0.1 * share, 0, -0.4]]
    np.testing.assert_allclose(grad_BT, np.array(expected) / 2, rtol=1e-5)


def test_ratios_beyond_a_fifth_are_far():
    ratio_BT = np.array([[0.75, 0.85, 1.15, 1.25]])
    batch = make_batch([[0, 0, 1, 1]], [[1] * 4])
    _, sums, _ = loss_and_grad(f32(np.log(ratio_BT)), batch, LossHypers("vanilla"))
    # Chunks: sqrt(0.75 * 0.85) = 0.798 and sqrt(1.15 * 1.25) = 1.199.
    assert (sums["token_ratios_far"], sums["chunk_ratios_far"]) == (2, 1)


def test_the_histogram_finds_what_was_counted_to_the_width_of_a_bin():
    rng = np.random.default_rng(0)
    x = rng.normal(size=10_000) * 10 ** rng.uniform(-4, 0, 10_000)
    counts = policy_loss.count_log_ratios(f32(x).reshape(100, 100), jnp.ones((100, 100), bool))
    assert counts.sum() == 10_000
    for percent in (1, 50, 99, 100):
        found = policy_loss.percentile(np.asarray(counts), percent)
        exact = np.percentile(x, percent, method="inverted_cdf")
        assert abs(found - exact) <= 0.021 * abs(exact) + 2.1e-5  # half a bin


def test_the_histogram_adds_up_and_leaves_out_what_does_not_count():
    counts = policy_loss.count_log_ratios(
        f32([[0.0, 0.5, jnp.nan, 1e4]]), jnp.array([[True, True, False, True]])
    )
    assert counts.sum() == 3 and counts[policy_loss.HALF] == 1 and counts[-1] == 1
    more = policy_loss.count_log_ratios(f32([[0.0, 0.5]]), jnp.array([[True, True]]))
    both = np.asarray(counts) + np.asarray(more)
    assert both.sum() == 5 and policy_loss.percentile(both, 40) == 0.0
    assert abs(policy_loss.percentile(both, 60) - 0.5) < 0.02


def test_the_figures_of_a_step_by_hand():
    """Of 100 tokens 97 have the ratio 1, one 1/2 and two 4; of the two chunks, one has 4."""
    x = f32([[0.0] * 97 + [2 * LN2, -LN2, 2 * LN2]])
    each = jnp.ones((1, 100), bool)
    sums = {
        "token_ratio_bins": policy_loss.count_log_ratios(x, each),
        "token_ratios_far": np.float32(3),
        "chunk_ratio_bins": policy_loss.count_log_ratios(x[:, 98:], each[:, 98:]),
        "chunk_ratios_far": np.float32(2),
    }
    found = policy_loss.ratio_figures({k: np.asarray(v) for k, v in sums.items()})
    expected = {"ratio_p1": 0.5, "ratio_p50": 1, "ratio_p99": 4, "ratio_max": 4, "ratio_far": 0.03}
    expected |= {"chunk_ratio_p1": 0.5, "chunk_ratio_p50": 0.5, "chunk_ratio_p99": 4}
    assert found == pytest.approx(expected | {"chunk_ratio_max": 4, "chunk_ratio_far": 1}, rel=0.04)
    nothing = {k: 0 * np.asarray(v) for k, v in sums.items()}
    assert policy_loss.ratio_figures(nothing) == {}

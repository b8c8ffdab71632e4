import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from ale_jax.algo.grpo import GrpoHypers, grpo_loss

HP = GrpoHypers(clip_low=0.2, clip_high=0.3)


def call(logp_BT, ratio_BT, chunk_BT, advantage_BC, normaliser=1.0, hp=HP):
    """The loss at log-probabilities `logp_BT` that are `ratio_BT` times those of pi_old."""
    logp_old_BT = jax.lax.stop_gradient(logp_BT) - jnp.log(ratio_BT)
    positive_BC = advantage_BC > 0
    return grpo_loss(
        logp_BT, logp_old_BT, logp_old_BT, chunk_BT, advantage_BC, positive_BC, normaliser, hp
    )


def test_the_four_corners_of_the_clip_by_hand():
    ratio_BT = jnp.array([[1.0, 1.5, 0.5, 1.5, 0.5]])
    chunk_BT = jnp.array([[-1, 0, 0, 1, 1]])
    advantage_BC = jnp.array([[2.0, -2.0]])
    logp_BT = jnp.full((1, 5), -1.0)
    (loss, metrics), grad_BT = jax.value_and_grad(call, has_aux=True)(
        logp_BT, ratio_BT, chunk_BT, advantage_BC, 4.0
    )
    # A = 2: min(3, 2.6), min(1, 1.6); A = -2: min(-3, -2.6), min(-1, -1.6)
    np.testing.assert_allclose(loss, -(2.6 + 1.0 - 3.0 - 1.6) / 4, rtol=1e-5)
    # Clipped where the ratio has already gone the way that the advantage pushes it.
    np.testing.assert_allclose(grad_BT, -np.array([[0, 0, 1.0, -3.0, 0]]) / 4, rtol=1e-5)
    assert metrics["tokens"] == 4 and metrics["clipped_tokens"] == 2
    np.testing.assert_allclose(metrics["ratio"], 4.0, rtol=1e-5)


def test_gradient_against_differences_inside_the_clip():
    rng = np.random.default_rng(0)
    logp_BT = jnp.asarray(-rng.exponential(1.0, (2, 6)), jnp.float32)
    old_BT = logp_BT + jnp.asarray(rng.uniform(-0.1, 0.1, (2, 6)), jnp.float32)
    chunk_BT = jnp.array([[-1, 0, 0, 1, 1, 1], [-1, -1, 0, 0, -1, 1]])
    advantage_BC = jnp.array([[1.0, -2.0], [0.5, -0.5]])

    def loss(x_BT):
        return grpo_loss(x_BT, old_BT, old_BT, chunk_BT, advantage_BC, advantage_BC > 0, 7.0, HP)[0]

    check_grads(loss, (logp_BT,), order=1, modes=["rev"], eps=1e-2, rtol=2e-2)


def test_padding_and_extreme_gaps_are_harmless():
    logp_BT = jnp.array([[jnp.nan, -1.0, -1e4, jnp.nan]])
    old_BT = jnp.array([[jnp.nan, -1e4, -1.0, jnp.nan]])
    chunk_BT = jnp.array([[-1, 0, 0, -1]])
    advantage_BC = jnp.array([[-1.0]])

    def loss(x_BT):
        return grpo_loss(x_BT, old_BT, old_BT, chunk_BT, advantage_BC, advantage_BC > 0, 2.0, HP)

    (value, metrics), grad_BT = jax.value_and_grad(loss, has_aux=True)(logp_BT)
    assert all(np.isfinite(x).all() for x in (value, grad_BT, *metrics.values()))


def test_microbatches_add_up_to_the_whole():
    rng = np.random.default_rng(1)
    ratio_BT = jnp.asarray(rng.uniform(0.5, 1.5, (4, 5)), jnp.float32)
    logp_BT = jnp.asarray(-rng.exponential(1.0, (4, 5)), jnp.float32)
    chunk_BT = jnp.tile(jnp.array([[-1, 0, 0, 1, -1]]), (4, 1))
    advantage_BC = jnp.asarray(rng.normal(size=(4, 2)), jnp.float32)
    args = (logp_BT, ratio_BT, chunk_BT, advantage_BC)
    whole, metrics = call(*args, normaliser=12.0)
    parts = [call(*(a[s] for a in args), normaliser=12.0) for s in (slice(1), slice(1, 4))]
    np.testing.assert_allclose(sum(p[0] for p in parts), whole, rtol=1e-5)
    for name in metrics:
        np.testing.assert_allclose(sum(p[1][name] for p in parts), metrics[name], rtol=1e-5)


@pytest.mark.parametrize(("field", "value"), [("clip_low", -0.1), ("clip_high", math.inf)])
def test_a_bad_clip_is_named(field, value):
    with pytest.raises(ValueError, match=f"{field} {value}"):
        GrpoHypers(**{field: value})

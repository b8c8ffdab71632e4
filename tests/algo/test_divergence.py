"""Divergences from the reference: their values, and what their gradients are in the mean."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.algo.divergence import MAX_K3, distribution_divergence, divergence
from ale_jax.config.algo import MismatchHypers
from ale_jax.config.loss import LossHypers
from tests.algo.batches import LN2, f32, loss_and_grad, make_batch


def test_divergences_by_hand():
    logp, ref = f32([[0.0, LN2]]), f32([[LN2, 0.0]])  # ref / pi: 2 and 1/2
    np.testing.assert_allclose(divergence(logp, ref, "k1"), [[-LN2, LN2]], rtol=1e-6)
    np.testing.assert_allclose(divergence(logp, ref, "k2"), [[LN2**2 / 2] * 2], rtol=1e-6)
    np.testing.assert_allclose(
        divergence(logp, ref, "k3"), [[2 - 1 - LN2, 0.5 - 1 + LN2]], rtol=1e-5
    )


@pytest.mark.parametrize("top", [2, 5, 8])
@pytest.mark.parametrize("estimator", ["reverse", "forward"])
def test_of_distributions_all_other_tokens_count_as_one(estimator, top):
    """Against sums in double precision over the reference's most probable tokens and the rest; the
    whole vocabulary gives the whole divergence, and fewer tokens never more."""
    logit_V, ref_V = np.random.default_rng(0).normal(size=(2, 8)) * 1.5
    ids = np.argsort(-ref_V)[:top]

    def merged(logit_V):
        p_V = np.exp(logit_V) / np.exp(logit_V).sum()
        parts = [p_V[ids], [] if top == 8 else [1 - p_V[ids].sum()]]
        return np.concatenate(parts)

    def expected(logit_V):
        one, other = merged(logit_V), merged(ref_V)
        one, other = (one, other) if estimator == "reverse" else (other, one)
        return (one * np.log(one / other)).sum()

    def found(logit_V):
        logp = jax.nn.log_softmax(logit_V)[ids]
        return distribution_divergence(logp, jax.nn.log_softmax(f32(ref_V))[ids], estimator)

    value, slope_V = jax.value_and_grad(found)(f32(logit_V))
    assert value == pytest.approx(expected(logit_V), abs=1e-5)
    steps = np.eye(8) * 1e-5
    numeric_V = [(expected(logit_V + e) - expected(logit_V - e)) / 2e-5 for e in steps]
    np.testing.assert_allclose(slope_V, numeric_V, atol=1e-4)


def test_a_token_that_a_mask_excludes_adds_nothing():
    one, other = f32([-0.1, -1e30]), f32([-0.2, -1.0001e30])
    for estimator in ("reverse", "forward"):
        value, slope = jax.value_and_grad(distribution_divergence)(one, other, estimator)
        short = distribution_divergence(one[:1], other[:1], estimator)
        assert value == pytest.approx(float(short)) and np.isfinite(slope).all() and slope[1] == 0


def test_what_the_gradients_of_the_divergences_are_in_the_mean():
    """Over a vocabulary: of k1 nothing, of k2 that of KL(pi || ref), of k3 of KL(ref || pi)."""
    logit_V, ref_V = f32([0.3, -0.5, 1.0]), jax.nn.log_softmax(f32([1.0, 0.0, -0.4]))
    pi_V = jax.nn.softmax(logit_V)

    def mean_gradient(estimator):
        def expected(logit_V):
            return (pi_V * divergence(jax.nn.log_softmax(logit_V), ref_V, estimator)).sum()

        return jax.grad(expected)(logit_V)

    def kl(logit_V):
        log_V = jax.nn.log_softmax(logit_V)
        return (jnp.exp(log_V) * (log_V - ref_V)).sum()

    def reverse_kl(logit_V):
        return (jnp.exp(ref_V) * (ref_V - jax.nn.log_softmax(logit_V))).sum()

    np.testing.assert_allclose(mean_gradient("k1"), np.zeros(3), atol=1e-6)
    np.testing.assert_allclose(mean_gradient("k2"), jax.grad(kl)(logit_V), atol=1e-6)
    np.testing.assert_allclose(mean_gradient("k3"), jax.grad(reverse_kl)(logit_V), atol=1e-6)


def test_the_weighted_divergence_has_the_right_gradient_on_tokens_of_older_weights():
    """Over a vocabulary, drawn from pi_old; k2, which is right on tokens of pi, is not."""
    logit_V, ref_V = f32([0.3, -0.5, 1.0]), jax.nn.log_softmax(f32([1.0, 0.0, -0.4]))
    old_V = jax.nn.log_softmax(f32([-0.6, 0.9, 0.2]))

    def expected(logit_V, estimator):
        logp_V = jax.nn.log_softmax(logit_V)
        return (jnp.exp(old_V) * divergence(logp_V, ref_V, estimator, logp_V - old_V)).sum()

    def kl(logit_V):
        log_V = jax.nn.log_softmax(logit_V)
        return (jnp.exp(log_V) * (log_V - ref_V)).sum()

    value, grad_V = jax.value_and_grad(expected)(logit_V, "k3_weighted")
    np.testing.assert_allclose(value, kl(logit_V), rtol=1e-5)
    np.testing.assert_allclose(grad_V, jax.grad(kl)(logit_V), atol=1e-6)
    assert np.abs(jax.grad(expected)(logit_V, "k2") - jax.grad(kl)(logit_V)).max() > 0.1


def test_the_weighted_divergence_has_no_edge_and_is_finite_anywhere():
    pull = jax.grad(lambda x, lr: divergence(x, f32(0.0), "k3_weighted", lr))
    steps = [float(pull(f32(d), f32(0.0))) for d in np.arange(-8.0, 8.0, 0.1)]
    np.testing.assert_allclose(np.diff(steps), 0.1, rtol=1e-3)
    for far in (-1e4, 1e4):
        for shift in (-1e4, 1e4):
            value = divergence(f32(far), f32(0.0), "k3_weighted", f32(shift))
            assert np.isfinite([value, pull(f32(far), f32(shift))]).all()


def test_in_a_loss_it_has_the_whole_weight_of_the_token():
    """pi / pi_old of the token, and pi_old / mu as far as the loss has it: of two chunks 1.5, to
    which it is capped, and 1."""
    arrays = {
        "logp_mu_BT": [[0, -2 * LN2, 0, -1.0]],
        "logp_old_BT": [[0, 0, 0, -1.0]],
        "logp_ref_BT": [[0, -1.0, -1.0, -1.0]],
    }
    batch = make_batch([[-1, 0, 0, 1]], [[1, 1, 1, 1]], **arrays)
    hp = LossHypers("vanilla", kl_weight=0.2, kl_estimator="k3_weighted")
    mismatch = MismatchHypers("chunk", 1.5)
    logp_BT = f32([[0, -1.5, -1.5, -1.5]])
    _, _, grad_BT = loss_and_grad(logp_BT, batch, hp, mismatch, loss_denominator=1.0)
    weight_T = [0, 1.5 * np.exp(-1.5), 1.5 * np.exp(-1.5), np.exp(-0.5)]
    np.testing.assert_allclose(grad_BT[0], 0.2 * -0.5 * np.array(weight_T), rtol=1e-5)


def test_an_abandoned_token_does_not_own_the_step():
    for far in (-5.0, -1e4):
        value, grad = jax.value_and_grad(lambda x: divergence(x, f32(0.0), "k3"))(f32(far))
        assert (value, grad) == (MAX_K3, 0.0)


def test_a_token_that_the_policy_is_far_too_fond_of_is_pulled_back():
    for far in (12.0, 1e4):  # k3 = e^-d - 1 + d, and its derivative 1 - e^-d
        value, grad = jax.value_and_grad(lambda x: divergence(x, f32(0.0), "k3"))(f32(far))
        np.testing.assert_allclose([value, grad], [far - 1, 1.0], rtol=1e-4)


def test_divergences_of_a_step_by_hand():
    """Of two tokens, pi is 2 and 1/2 times pi_old, which is mu on the first one and 2 mu on the
    other."""
    one = np.zeros((1, 2), np.int32)
    old_BT = f32([[-1.0, -2.0]])
    mu_BT = old_BT - f32([[0.0, np.log(2.0)]])
    batch = make_batch(one, one + 1, logp_old_BT=old_BT, logp_mu_BT=mu_BT)
    logp_BT = old_BT + f32([[np.log(2.0), -np.log(2.0)]])
    _, sums, _ = loss_and_grad(logp_BT, batch)
    log2 = np.log(2.0)
    assert float(sums["approx_kl"]) == pytest.approx((2 - 1 - log2) + (0.5 - 1 + log2), rel=1e-5)
    assert float(sums["mismatch_kl"]) == pytest.approx(2 - 1 - log2, rel=1e-5)

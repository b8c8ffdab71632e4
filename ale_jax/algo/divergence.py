"""Divergences of the policy from a reference: estimates of KL(pi || ref) from one sampled token,
and divergences of whole distributions.

With d = log pi - log ref, of a token of pi (Schulman 2020): k1 = d; k2 = d^2 / 2; k3 = exp(-d) - 1
+ d. k1 and k3 are unbiased, and k3 is never negative. In a loss only the gradient matters. The
gradient of k1 has mean 0 for every reference; the mean of that of k2 (d times the gradient of
log pi) is the gradient of KL(pi || ref); and the mean of that of k3 is the gradient of
KL(ref || pi).

On tokens of older weights this does not hold. k3_weighted is r k3 with the token's ratio
r = pi / pi_old (DeepSeek-V3.2, arXiv 2512.02556, Eq 7): its gradient is r d times that of log pi,
of which the mean over tokens of pi_old is the gradient of KL(pi || ref).

Of whole distributions the reference tells its k most probable tokens. All others count as one more,
which makes the divergence a lower bound: exact if k is the vocabulary.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ale_jax.algo.ratio import exp_log_ratio
from ale_jax.config.loss import OF_DISTRIBUTIONS, WEIGHTED

# For a token whose probability has become very small (d far below 0), k3 is about ref / pi, which
# has no bound, so its gradient would dominate the step. Where d < 0, k3 is constant beyond this:
# its pull grows to 12.5 at d = -2.6, and is 0 below -2.61.
MAX_K3 = 10.0
# Of all tokens that are not told: float32 tells no smaller difference of a sum from 1 well.
LEAST_REST = 1e-6


def divergence(
    logp_BT: jax.Array,
    logp_ref_BT: jax.Array,
    estimator: str,
    log_ratio_BT: jax.Array | float = 0.0,
) -> jax.Array:
    """Estimates KL(pi || ref) for each token, float32 [B, T], differentiable with respect to
    `logp_BT`. log_ratio_BT: log pi / pi_old of each token, which only k3_weighted reads.

    With pi twice as likely as ref, d = log 2, and k3 is 1/2 - 1 + log 2:

        >>> logp_BT, ref_BT = jnp.log(jnp.array([[0.5]])), jnp.log(jnp.array([[0.25]]))
        >>> every = [divergence(logp_BT, ref_BT, name) for name in ("k1", "k2", "k3")]
        >>> [round(float(d_BT[0, 0]), 3) for d_BT in every]
        [0.693, 0.24, 0.193]

    With pi far below ref, k3 pulls the token's log-probability up 12 times as hard as with pi near
    it, and a little further not at all. k3_weighted pulls by d, times the ratio:

        >>> def pull(d, *more):
        ...     return 0.0 - float(jax.grad(divergence)(jnp.array(d), jnp.array(0.0), *more))
        >>> [round(pull(d, "k3"), 1) for d in (-0.7, -2.6, -2.7)]
        [1.0, 12.5, 0.0]
        >>> [round(pull(d, "k3_weighted"), 1) for d in (-0.7, -2.6, -2.7)]
        [0.7, 2.6, 2.7]
        >>> round(pull(-2.6, "k3_weighted", float(jnp.log(0.5))), 1)
        1.3
    """
    d_BT = logp_BT - logp_ref_BT
    if estimator == "k1":
        return d_BT
    if estimator == "k2":
        return 0.5 * d_BT**2
    if estimator == WEIGHTED:
        held_BT, moved_BT = jax.lax.stop_gradient((d_BT, jnp.asarray(log_ratio_BT)))
        ratio_BT = exp_log_ratio(moved_BT)
        pull_BT = ratio_BT * held_BT
        # r k3 = ref / pi_old - r + r d. Its gradient is written out, as the two other terms, which
        # add nothing to it, may be as large as ref / pi_old.
        value_BT = exp_log_ratio(moved_BT - held_BT) - ratio_BT + pull_BT
        return value_BT + pull_BT * (d_BT - held_BT)
    assert estimator == "k3", estimator
    # The argument of exp() is bounded as well: otherwise the gradient would be inf times the 0 of
    # the bound, which is nan.
    k3_BT = jnp.expm1(jnp.clip(-d_BT, None, 2.0 * MAX_K3)) + d_BT
    return jnp.where(d_BT < 0.0, jnp.minimum(k3_BT, MAX_K3), k3_BT)


def distribution_divergence(
    logp_BTk: jax.Array, logp_ref_BTk: jax.Array, estimator: str
) -> jax.Array:
    """Returns KL(pi || ref) ("reverse") or KL(ref || pi) ("forward") in each place, float32 [B, T],
    differentiable with respect to `logp_BTk`.

    logp_BTk, logp_ref_BTk: log-probabilities of the k tokens that the reference tells. A token that
    a mask has excluded has a probability of 0 in both, and adds nothing.

    With the probabilities 1/2, 1/4 of two tokens, where the reference has 1/4, 1/2:

        >>> logp, ref = jnp.log(jnp.array([0.5, 0.25])), jnp.log(jnp.array([0.25, 0.5]))
        >>> both = [distribution_divergence(logp, ref, each) for each in ("reverse", "forward")]
        >>> [round(float(each), 3) for each in both]
        [0.173, 0.173]
    """
    assert estimator in OF_DISTRIBUTIONS, estimator
    every, every_ref = _with_rest(logp_BTk), _with_rest(logp_ref_BTk)
    if estimator == "forward":
        every, every_ref = every_ref, every
    return (jnp.exp(every) * (every - every_ref)).sum(axis=-1)


def _with_rest(logp_BTk: jax.Array) -> jax.Array:
    """Adds the log-probability of all other tokens."""
    rest_BT1 = 1.0 - jnp.exp(logp_BTk).sum(axis=-1, keepdims=True)
    return jnp.concatenate([logp_BTk, jnp.log(jnp.maximum(rest_BT1, LEAST_REST))], axis=-1)

"""Policy losses, each of one token: to be minimised, summed and divided by the step's normaliser.

A loss is a function (Tokens, LossHypers) -> (loss_BT, clipped_BT); r is the ratio pi / pi_old at
the level of the hyperparameters, A the advantage, sg() is held constant. clipped_BT: where the
ratio's bound acts, for the metrics. What each of them reads: `LOSSES` of `ale_jax.algo.algorithm`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ale_jax.algo.algorithm import LossHypers
from ale_jax.algo.ratio import exp_log_ratio


class Tokens(NamedTuple):
    """Of policy tokens; elsewhere finite and not looked at. log_ratio_BT: of `log_ratio`.
    advantage_BT: A; a token is positive (of T+, Eq 9 of arXiv 2512.24873) if A > 0."""

    logp_BT: jax.Array
    log_ratio_BT: jax.Array
    advantage_BT: jax.Array

    @property
    def positive_BT(self) -> jax.Array:
        return self.advantage_BT > 0.0

    @property
    def weight_BT(self) -> jax.Array:
        """sg(r): a ratio that weighs a gradient is not itself to be optimised."""
        return exp_log_ratio(jax.lax.stop_gradient(self.log_ratio_BT))


def _vanilla(tokens: Tokens, hp: LossHypers) -> tuple[jax.Array, jax.Array]:
    """-A log pi: REINFORCE, no ratio."""
    never_BT = jnp.zeros(tokens.logp_BT.shape, bool)
    return -tokens.advantage_BT * tokens.logp_BT, never_BT


def _ppo(tokens: Tokens, hp: LossHypers) -> tuple[jax.Array, jax.Array]:
    """-min(r A, clip(r, 1 - low, 1 + high) A) (arXiv 1707.06347; low and high apart, 2503.14476).

    dual_clip c: where A < 0 at least c A (arXiv 1912.09729), so that a token that the policy has
    come to like cannot push without bound. At the sequence's level it is GSPO.
    """
    ratio_BT, advantage_BT = exp_log_ratio(tokens.log_ratio_BT), tokens.advantage_BT
    clipped_BT = jnp.clip(ratio_BT, 1.0 - hp.clip_low, 1.0 + hp.clip_high)
    gain_BT = jnp.minimum(ratio_BT * advantage_BT, clipped_BT * advantage_BT)
    acts_BT = clipped_BT * advantage_BT < ratio_BT * advantage_BT
    if hp.dual_clip:
        least_BT = hp.dual_clip * advantage_BT
        bounded_BT = (advantage_BT < 0.0) & (gain_BT < least_BT)
        gain_BT, acts_BT = jnp.where(bounded_BT, least_BT, gain_BT), acts_BT | bounded_BT
    return -gain_BT, acts_BT


def _tis(tokens: Tokens, hp: LossHypers) -> tuple[jax.Array, jax.Array]:
    """-sg(min(r, cap)) A log pi: truncated importance sampling (Eq 4 of arXiv 2512.24873)."""
    ratio_BT = tokens.weight_BT
    weight_BT = jnp.minimum(ratio_BT, hp.ratio_cap)
    return -(weight_BT * tokens.advantage_BT) * tokens.logp_BT, ratio_BT > hp.ratio_cap


def _topr(tokens: Tokens, hp: LossHypers) -> tuple[jax.Array, jax.Array]:
    """Tapered off-policy REINFORCE (arXiv 2503.14286): -A log pi where A > 0, TIS elsewhere. A
    success stays worth imitating when the policy has moved away from it.

    With a ratio per chunk, discounted returns per chunk and a mask on chunks it is IPA (Eq 9).
    """
    ratio_BT, positive_BT = tokens.weight_BT, tokens.positive_BT
    weight_BT = jnp.where(positive_BT, 1.0, jnp.minimum(ratio_BT, hp.ratio_cap))
    acts_BT = ~positive_BT & (ratio_BT > hp.ratio_cap)
    return -(weight_BT * tokens.advantage_BT) * tokens.logp_BT, acts_BT


def _cispo(tokens: Tokens, hp: LossHypers) -> tuple[jax.Array, jax.Array]:
    """-sg(clip(r, 1 - low, 1 + high)) A log pi (arXiv 2506.13585): clipped tokens still teach."""
    ratio_BT = tokens.weight_BT
    weight_BT = jnp.clip(ratio_BT, 1.0 - hp.clip_low, 1.0 + hp.clip_high)
    return -(weight_BT * tokens.advantage_BT) * tokens.logp_BT, weight_BT != ratio_BT


def _kimi(tokens: Tokens, hp: LossHypers) -> tuple[jax.Array, jax.Array]:
    """-A log pi + tau/2 (log r)^2 (arXiv 2501.12599): the square holds the policy near pi_old. It
    has a gradient also where A is 0."""
    never_BT = jnp.zeros(tokens.logp_BT.shape, bool)
    pull_BT = 0.5 * hp.tau * tokens.log_ratio_BT**2
    return pull_BT - tokens.advantage_BT * tokens.logp_BT, never_BT


# decoupled_ppo (arXiv 2110.00641): PPO around the proximal policy, weighed by sg(min(pi_prox /
# pi_old, cap)), which `policy_loss` multiplies in.
TOKEN_LOSSES = {
    "vanilla": _vanilla,
    "ppo": _ppo,
    "decoupled_ppo": _ppo,
    "tis": _tis,
    "topr": _topr,
    "cispo": _cispo,
    "kimi": _kimi,
}

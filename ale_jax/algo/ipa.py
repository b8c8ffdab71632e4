"""Interaction-Perceptive Agentic Policy Optimization (IPA), arXiv 2512.24873 section 3.2.4.

Three policies over the same token are kept apart:
    pi      the weights of now, in the learner;
    pi_old  the weights that wrote the token;
    mu      the distribution that the sampler drew it from.
pi / pi_old is the importance ratio (Eq 8); pi_old / mu only decides whether a chunk is used.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp

from ale_jax.algo import hypers
from ale_jax.algo.chunks import chunk_count, chunk_mean, chunk_sum
from ale_jax.algo.ratio import exp_log_ratio

BASELINES = ("group_mean", "none")


@dataclasses.dataclass(frozen=True)
class IpaHypers:
    """The decisions that the paper leaves open, each with its default and why.

    gamma: discount per chunk. 0.95 keeps 60 % of the credit ten turns before the end, and still
        prefers the short success.
    mask_threshold: H. A chunk is used if its geometric mean of pi_old / mu is at most this.
        Learner and sampler share one model function, so 1 is expected and 1.2, a fifth per
        token, is a fault.
    failure_reward: added to the outcome of a failure (outcome <= 0). 0, because against the group
        mean a failure costs already, and one that costs in a group of failures is noise.
    baseline: "group_mean" or "none". The mean makes both T+ and T- teach and an all-fail group
        teach nothing, as the paper says of both; with "none" only successes teach.
    normaliser: what the sum of Eq 9 is divided by, counted over the whole step: "tokens",
        "chunks" or "trajectories". All three are Eq 9 up to one scalar per step. Tokens, because
        the gradient's size, and so the clipping norm, then does not follow the episodes' length.
    ratio_on_positives: weigh successes by the truncated ratio as well. Eq 9 does not: a success
        stays worth imitating when the policy has moved away from it.
    negative_weight: factor on what trajectories below their baseline teach (the second sum of Eq
        9). 1 is Eq 9. Most chunks of a failed episode were right, so pushing all of them down is
        noise beside the signal; a small policy with few episodes per step learns better with less.
    old_logp: where pi_old comes from. "sampler": as recorded with each token by the engine, exact
        for every version. "trainer": a forward pass at the start of the step, whose numerics are
        the learner's own but whose weights are the generating ones only for fresh tokens.
    """

    gamma: float = 0.95
    mask_threshold: float = 1.2
    failure_reward: float = 0.0
    baseline: str = "group_mean"
    normaliser: str = "tokens"
    ratio_on_positives: bool = False
    negative_weight: float = 1.0
    old_logp: str = "sampler"

    def __post_init__(self) -> None:
        hypers.require_range("gamma", self.gamma, 0.0, 1.0, "1 means no discount")
        hypers.require_range(
            "mask_threshold", self.mask_threshold, 1.0, 1e6, "engines that agree have the ratio 1"
        )
        hypers.require_range(
            "failure_reward", self.failure_reward, -1e6, 0.0, "a failure is not worth a reward"
        )
        hypers.require_choice("baseline", self.baseline, BASELINES)
        hypers.require_range(
            "negative_weight", self.negative_weight, 0.0, 1.0, "0 learns from successes alone"
        )
        hypers.require_choice("normaliser", self.normaliser, hypers.NORMALISERS)
        hypers.require_choice("old_logp", self.old_logp, hypers.OLD_LOGP_SOURCES)


def chunk_ratio(
    logp_BT: jax.Array, logp_old_BT: jax.Array, chunk_BT: jax.Array, num_chunks: int
) -> jax.Array:
    """Eq 8: geometric mean of pi / pi_old over each chunk's tokens, [B, C]. 1 if it has none."""
    return exp_log_ratio(chunk_mean(logp_BT - logp_old_BT, chunk_BT, num_chunks))


def chunk_mask(
    logp_old_BT: jax.Array,
    logp_mu_BT: jax.Array,
    chunk_BT: jax.Array,
    num_chunks: int,
    threshold: float,
) -> jax.Array:
    """m_c: True where a chunk's geometric mean of pi_old / mu is <= threshold, bool [B, C].

    One-sided, as in the paper, and for the whole chunk: dropping single tokens would leave the
    others to be learned under a state that the learner's policy does not visit.
    """
    gap_BC = chunk_mean(logp_old_BT - logp_mu_BT, chunk_BT, num_chunks)
    # Compared as logarithms: nothing can overflow.
    return gap_BC <= math.log(threshold)


def ipa_loss(
    logp_BT: jax.Array,
    logp_old_BT: jax.Array,
    logp_mu_BT: jax.Array,
    chunk_BT: jax.Array,
    advantage_BC: jax.Array,
    positive_BC: jax.Array,
    normaliser: jax.Array | float,
    hp: IpaHypers,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Eq 9 as a loss: -(1/Z) sum_c m_c w_c A_c sum_{t in c} log pi(t).

    w_c is 1 for chunks of positive trajectories and min(ratio_c, 1), held constant, for the others,
    times `negative_weight`.
    Entry t of each _BT array belongs to token t itself. `normaliser` is Z, counted over the whole
    step (`count_normaliser`), dropped chunks included: so neither microbatches nor packing change
    the result, and dropping a chunk takes its gradient away without raising the others'.

    Returns the loss and sums (not means) for the metrics, which add up over microbatches.
    """
    assert logp_BT.shape == logp_old_BT.shape == logp_mu_BT.shape == chunk_BT.shape
    assert advantage_BC.shape == positive_BC.shape, (advantage_BC.shape, positive_BC.shape)
    num_chunks = advantage_BC.shape[1]

    # Eq 9 weighs gradients: the weight itself is not to be optimised.
    ratio_BC = chunk_ratio(jax.lax.stop_gradient(logp_BT), logp_old_BT, chunk_BT, num_chunks)
    truncated_BC = jnp.minimum(ratio_BC, 1.0)
    free_BC = positive_BC & (not hp.ratio_on_positives)
    weight_BC = jnp.where(free_BC, 1.0, truncated_BC)
    weight_BC = jnp.where(positive_BC, weight_BC, hp.negative_weight * weight_BC)

    keep_BC = chunk_mask(logp_old_BT, logp_mu_BT, chunk_BT, num_chunks, hp.mask_threshold)
    coefficient_BC = jnp.where(keep_BC, weight_BC * advantage_BC, 0.0)
    loss = -(coefficient_BC * chunk_sum(logp_BT, chunk_BT, num_chunks)).sum() / normaliser

    real_BC = chunk_count(chunk_BT, num_chunks) > 0
    written_BT = chunk_BT >= 0
    metrics = {
        "tokens": written_BT.sum(),
        "chunks": real_BC.sum(),
        "dropped_chunks": (real_BC & ~keep_BC).sum(),
        "truncated_chunks": (real_BC & ~free_BC & (ratio_BC > 1.0)).sum(),
        "ratio": jnp.where(real_BC, ratio_BC, 0.0).sum(),
        "engine_gap": jnp.where(written_BT, jnp.abs(logp_old_BT - logp_mu_BT), 0.0).sum(),
    }
    return loss, {name: value.astype(jnp.float32) for name, value in metrics.items()}

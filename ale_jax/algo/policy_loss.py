"""The loss of one microbatch: policy gradient, divergence, entropy and imitation, and its figures.

Three policies over the same token are kept apart:
    pi      the weights of now, in the learner;
    pi_old  the weights that wrote the token (docs/pi_old.md);
    mu      the distribution that the sampler drew it from.
pi / pi_old is the importance ratio; pi_old / mu only weighs or filters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from ale_jax.algo.algorithm import LossHypers, MismatchHypers
from ale_jax.algo.chunks import chunk_count, chunk_sum, chunk_to_token
from ale_jax.algo.divergence import divergence
from ale_jax.algo.histogram import count_log_ratios
from ale_jax.algo.losses import TOKEN_LOSSES, Tokens
from ale_jax.algo.mismatch import importance_weight, keep_mask
from ale_jax.algo.ratio import exp_log_ratio, log_ratio, unit_mean

Arrays = Mapping[str, jax.Array]
NEAR = (0.8, 1.2)  # ratios outside are counted: where the usual clip would act


def policy_loss(
    logp_BT: jax.Array,
    entropy_BT: jax.Array,
    batch: Arrays,
    normaliser: jax.Array | float,
    num_chunks: int,
    hp: LossHypers,
    mismatch: MismatchHypers,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """(1/Z) sum_t [m_t s_t (w_t L_t + kl_weight D_t - entropy_weight e_t H_t) - s_t i_t log pi(t)].

    m: `keep_mask`; s: 1, or 1 / tokens of the trajectory ("trajectory_means"); w:
    `importance_weight`; L: of `TOKEN_LOSSES`; D: `divergence`; H: entropy, e: entropy_BT of the
    batch; i: imitate_BT. Entry t of each _BT array belongs to token t itself; batch: the arrays
    of a `Batch` by name; num_chunks: of a row, at most.
    `normaliser` is Z, counted over the whole step (`count_normaliser`), filtered tokens included:
    so neither microbatches nor packing change the result, and filtering a token takes its gradient
    away without raising the others'. What lies outside all chunks has no influence, nan included.

    Returns the loss and sums (not means) for the metrics, which add up over microbatches.
    """
    chunk_BT, segment_BT = batch["chunk_BT"], batch["segment_BT"]
    written_BT = chunk_BT >= 0
    imitation = _imitation(logp_BT, batch, num_chunks, hp)

    # Masked before anything is computed: where() afterwards would let nan into the gradient.
    def of_policy(x_BT: jax.Array) -> jax.Array:
        return jnp.where(written_BT, x_BT, 0.0)

    logp_BT, logp_old_BT = of_policy(logp_BT), of_policy(batch["logp_old_BT"])
    advantage_BT = of_policy(batch["advantage_BT"])
    advantage_BT *= jnp.where(advantage_BT < 0.0, hp.negative_weight, 1.0)
    decoupled = hp.kind == "decoupled_ppo"
    centre_BT = of_policy(batch["logp_prox_BT"]) if decoupled else logp_old_BT
    tokens = Tokens(
        logp_BT,
        log_ratio(logp_BT, centre_BT, chunk_BT, segment_BT, hp.level, num_chunks),
        advantage_BT,
    )
    loss_BT, clipped_BT = TOKEN_LOSSES[hp.kind](tokens, hp)
    if decoupled:
        behind_BT = log_ratio(centre_BT, logp_old_BT, chunk_BT, segment_BT, hp.level, num_chunks)
        loss_BT *= jnp.minimum(exp_log_ratio(behind_BT), hp.ratio_cap)
    gap_BT = logp_old_BT - of_policy(batch["logp_mu_BT"])
    keep_BT = keep_mask(gap_BT, chunk_BT, segment_BT, num_chunks, mismatch)
    loss_BT *= importance_weight(gap_BT, chunk_BT, segment_BT, num_chunks, mismatch)
    sums = {}
    if hp.kl_weight:
        logp_ref_BT = of_policy(batch["logp_ref_BT"])
        sums["kl"] = (logp_BT - logp_ref_BT).sum()
        loss_BT += hp.kl_weight * divergence(logp_BT, logp_ref_BT, hp.kl_estimator)
    if hp.entropy_weight:
        bonus_BT = hp.entropy_weight * of_policy(entropy_BT)
        factor_BT = batch.get("entropy_BT")
        loss_BT -= bonus_BT if factor_BT is None else of_policy(factor_BT) * bonus_BT
    loss_BT = jnp.where(keep_BT, loss_BT, 0.0)
    if hp.aggregation == "trajectory_means":
        loss_BT *= _one_over_size(segment_BT, written_BT, num_chunks)
    loss = loss_BT.sum() / normaliser + imitation / normaliser

    ratio_BT = log_ratio(logp_BT, logp_old_BT, chunk_BT, segment_BT, hp.level, num_chunks)
    sums |= _figures(chunk_BT, num_chunks, keep_BT, clipped_BT & keep_BT, ratio_BT, hp.level)
    sums |= _ratio_counts(logp_BT - logp_old_BT, chunk_BT, segment_BT, num_chunks)
    sums["engine_gap"] = jnp.abs(gap_BT).sum()
    return loss, {name: value.astype(jnp.float32) for name, value in sums.items()}


def _imitation(logp_BT: jax.Array, batch: Arrays, num_chunks: int, hp: LossHypers) -> jax.Array:
    """-sum_t i_t log pi(t), the imitation term of Eq 10 of arXiv 2512.24873, before 1/Z."""
    imitated_BT = batch["imitate_BT"] != 0.0
    loss_BT = -batch["imitate_BT"] * jnp.where(imitated_BT, logp_BT, 0.0)
    if hp.aggregation == "trajectory_means":
        loss_BT *= _one_over_size(batch["segment_BT"], imitated_BT, num_chunks)
    return loss_BT.sum()


def _one_over_size(segment_BT: jax.Array, counted_BT: jax.Array, num_chunks: int) -> jax.Array:
    """1 / how many tokens of its trajectory are counted, on those tokens; 0 elsewhere."""
    id_BT = jnp.where(counted_BT, segment_BT - 1, -1)
    size_BC = chunk_count(id_BT, num_chunks)
    return chunk_to_token(1.0 / jnp.maximum(size_BC, 1.0), id_BT)


def _figures(
    chunk_BT, num_chunks, keep_BT, clipped_BT, log_ratio_BT, level
) -> dict[str, jax.Array]:
    """ratio: summed over tokens or, where it is that of a chunk or a trajectory, over chunks."""
    written_BT = chunk_BT >= 0
    real_BC = chunk_count(chunk_BT, num_chunks) > 0
    kept_BC = chunk_sum(keep_BT.astype(jnp.float32), chunk_BT, num_chunks) > 0
    each_BT = written_BT if level == "token" else _first_of_chunk(chunk_BT)
    return {
        "tokens": written_BT.sum(),
        "chunks": real_BC.sum(),
        "masked_tokens": (written_BT & ~keep_BT).sum(),
        "masked_chunks": (real_BC & ~kept_BC).sum(),
        "clipped_tokens": clipped_BT.sum(),
        "ratio": jnp.where(each_BT, exp_log_ratio(log_ratio_BT), 0.0).sum(),
        "ratios": each_BT.sum(),
    }


def _first_of_chunk(chunk_BT: jax.Array) -> jax.Array:
    return (chunk_BT >= 0) & (chunk_BT != jnp.roll(chunk_BT, 1, axis=1))


def _ratio_counts(own_BT, chunk_BT, segment_BT, num_chunks) -> dict[str, jax.Array]:
    """How pi / pi_old is distributed, over tokens and over chunks."""
    own_BT = jax.lax.stop_gradient(own_BT)
    mean_BT = unit_mean(own_BT, chunk_BT, segment_BT, "chunk", num_chunks)
    low, high = map(math.log, NEAR)
    sums = {}
    for name, x_BT, each_BT in (
        ("token", own_BT, chunk_BT >= 0),
        ("chunk", mean_BT, _first_of_chunk(chunk_BT)),
    ):
        sums[f"{name}_ratio_bins"] = count_log_ratios(x_BT, each_BT)
        sums[f"{name}_ratios_far"] = (each_BT & ((x_BT < low) | (x_BT > high))).sum()
    return sums

"""The loss of one microbatch (policy gradient, divergence, entropy, cross entropy on what others
wrote) and its metrics.

Three policies are distinguished for each token:
    pi      the current weights, in the learner;
    pi_old  the weights that generated the token (docs/pi_old.md);
    mu      the distribution that the token was sampled from.
pi / pi_old is the importance ratio; pi_old / mu is only used to weight or filter tokens.

Log-ratios are reported as histograms with fixed bins, whose counts add up over microbatches and
hosts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from ale_jax.algo.divergence import distribution_divergence, divergence
from ale_jax.algo.losses import (
    TOKEN_LOSSES,
    Arrays,
    Tokens,
    imitation,
    observations,
    weighted,
)
from ale_jax.algo.ratio import (
    MAX_LOG_RATIO,
    chunk_count,
    chunk_sum,
    exp_log_ratio,
    importance_weight,
    keep_mask,
    log_ratio,
    one_over_count,
    unit_ids,
    unit_mean,
)
from ale_jax.algo.values import chunk_starts
from ale_jax.config.algo import MismatchHypers
from ale_jax.config.loss import OF_DISTRIBUTIONS, WEIGHTED, LossHypers

NEAR = (0.8, 1.2)  # ratios outside, where the usual clip would act, are counted
MEANS = {"chunk_means": "chunk", "trajectory_means": "sequence"}  # aggregation -> its units


def policy_loss(
    logp_BT: jax.Array,
    entropy_BT: jax.Array,
    batch: Arrays,
    loss_denominator: jax.Array | float,
    num_chunks: int,
    hp: LossHypers,
    mismatch: MismatchHypers,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns the loss of one microbatch, (1/Z) sum_t [m_t s_t (w_t L_t + kl_weight D_t -
    entropy_weight e_t H_t) - s_t (i_t + observation_weight o_t) log pi(t)], and sums for its
    metrics.

    m: `keep_mask`; s: 1, or 1 / tokens of the chunk ("chunk_means") or trajectory
    ("trajectory_means", times weight_BT where the batch has it); w: `importance_weight`; L: one of
    `TOKEN_LOSSES`; D: `divergence`, times w if it is k3_weighted; H: entropy; e: entropy_BT of the
    batch; i: imitate_BT; o: `observation_mask`. Entry t of each _BT array belongs to token t
    itself. batch: the arrays of a `Batch` by name, and logp_top_BTk, log pi of top_id_BTk, if a
    divergence compares distributions. num_chunks: the most chunks that a row can have.

    `loss_denominator` is Z, counted over the whole step (`count_loss_denominator`) with filtered
    tokens included. Therefore neither microbatches nor packing change the result, and filtering a
    token removes its gradient without increasing the gradients of the others. Values outside all
    chunks have no influence, even if they are nan, except log pi where i or o is not 0.

    The metrics are sums (not means), which add up over microbatches.

    One chunk of two tokens with the advantage 3, by the loss "vanilla", is -(3 log pi(1) + 3 log
    pi(2)) / 2:

        >>> row = {name: jnp.zeros((1, 3)) for name in ("logp_old_BT", "logp_mu_BT", "imitate_BT")}
        >>> row |= {"chunk_BT": jnp.array([[-1, 0, 0]]), "segment_BT": jnp.array([[1, 1, 1]])}
        >>> row |= {"advantage_BT": jnp.array([[0.0, 3.0, 3.0]])}
        >>> logp_BT, entropy_BT = jnp.array([[-9.0, -1.0, -2.0]]), jnp.zeros((1, 3))
        >>> loss, sums = policy_loss(logp_BT, entropy_BT, row, 2, 1, LossHypers(), MismatchHypers())
        >>> float(loss), float(sums["tokens"])
        (4.5, 2.0)
    """
    chunk_BT, segment_BT = batch["chunk_BT"], batch["segment_BT"]
    action_mask_BT = chunk_BT >= 0
    imitated = imitation(logp_BT, batch, num_chunks, hp)
    observed, sums = observations(logp_BT, batch, num_chunks, hp)

    # Masked before anything is computed: a where() afterwards would let nan into the gradient.
    def of_policy(x_BT: jax.Array) -> jax.Array:
        return jnp.where(action_mask_BT, x_BT, 0.0)

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
    mismatch_BT = importance_weight(gap_BT, chunk_BT, segment_BT, num_chunks, mismatch)
    loss_BT *= mismatch_BT
    if hp.kl_weight:
        kl_BT = _divergence(logp_BT, logp_old_BT, batch, hp)
        loss_BT += hp.kl_weight * (mismatch_BT * kl_BT if hp.kl_estimator == WEIGHTED else kl_BT)
    if hp.entropy_weight:
        bonus_BT = hp.entropy_weight * of_policy(entropy_BT)
        factor_BT = batch.get("entropy_BT")
        loss_BT -= bonus_BT if factor_BT is None else of_policy(factor_BT) * bonus_BT
    loss_BT = jnp.where(keep_BT, loss_BT, 0.0)
    if hp.aggregation in MEANS:
        id_BT = unit_ids(chunk_BT, segment_BT, MEANS[hp.aggregation])
        loss_BT = weighted(loss_BT * one_over_count(id_BT, num_chunks), batch)
    loss = loss_BT.sum() / loss_denominator + imitated / loss_denominator
    if hp.observation_weight:
        loss += hp.observation_weight * observed / loss_denominator

    ratio_BT = log_ratio(logp_BT, logp_old_BT, chunk_BT, segment_BT, hp.level, num_chunks)
    sums |= _figures(chunk_BT, num_chunks, keep_BT, clipped_BT & keep_BT, ratio_BT, hp.level)
    sums |= _ratio_counts(logp_BT - logp_old_BT, chunk_BT, segment_BT, num_chunks)
    sums["old_rollout_logp_diff"] = jnp.abs(gap_BT).sum()
    # k3 of tokens of the first policy (`algo.divergence`): KL(mu || pi_old) and KL(pi_old || pi).
    for name, log_BT in (("mismatch_kl", gap_BT), ("approx_kl", logp_BT - logp_old_BT)):
        sums[name] = (exp_log_ratio(log_BT) - 1.0 - log_BT).sum()
    return loss, {name: value.astype(jnp.float32) for name, value in sums.items()}


def _divergence(
    logp_BT: jax.Array, logp_old_BT: jax.Array, batch: Arrays, hp: LossHypers
) -> jax.Array:
    """Returns D of the policy's tokens; 0 elsewhere."""
    action_mask_BT = batch["chunk_BT"] >= 0
    if hp.kl_estimator in OF_DISTRIBUTIONS:
        logp_BTk, logp_ref_BTk = (
            jnp.where(action_mask_BT[..., None], batch[name], 0.0)
            for name in ("logp_top_BTk", "logp_ref_top_BTk")
        )
        kl_BT = distribution_divergence(logp_BTk, logp_ref_BTk, hp.kl_estimator)
        return jnp.where(action_mask_BT, kl_BT, 0.0)
    logp_ref_BT = jnp.where(action_mask_BT, batch["logp_ref_BT"], 0.0)
    return divergence(logp_BT, logp_ref_BT, hp.kl_estimator, logp_BT - logp_old_BT)


def _figures(
    chunk_BT: jax.Array,
    num_chunks: int,
    keep_BT: jax.Array,
    clipped_BT: jax.Array,
    log_ratio_BT: jax.Array,
    level: str,
) -> dict[str, jax.Array]:
    """Sums what the metrics count. "ratio" is summed over tokens if the level is "token", otherwise
    over chunks."""
    action_mask_BT = chunk_BT >= 0
    real_BC = chunk_count(chunk_BT, num_chunks) > 0
    kept_BC = chunk_sum(keep_BT.astype(jnp.float32), chunk_BT, num_chunks) > 0
    each_BT = action_mask_BT if level == "token" else chunk_starts(chunk_BT)
    return {
        "tokens": action_mask_BT.sum(),
        "chunks": real_BC.sum(),
        "masked_tokens": (action_mask_BT & ~keep_BT).sum(),
        "masked_chunks": (real_BC & ~kept_BC).sum(),
        "clipped_tokens": clipped_BT.sum(),
        "ratio": jnp.where(each_BT, exp_log_ratio(log_ratio_BT), 0.0).sum(),
        "ratios": each_BT.sum(),
    }


def _ratio_counts(
    own_BT: jax.Array, chunk_BT: jax.Array, segment_BT: jax.Array, num_chunks: int
) -> dict[str, jax.Array]:
    """Counts pi / pi_old in bins, over tokens and over chunks."""
    own_BT = jax.lax.stop_gradient(own_BT)
    mean_BT = unit_mean(own_BT, chunk_BT, segment_BT, "chunk", num_chunks)
    low, high = map(math.log, NEAR)
    sums = {}
    for name, x_BT, each_BT in (
        ("token", own_BT, chunk_BT >= 0),
        ("chunk", mean_BT, chunk_starts(chunk_BT)),
    ):
        sums[f"{name}_ratio_bins"] = count_log_ratios(x_BT, each_BT)
        sums[f"{name}_ratios_far"] = (each_BT & ((x_BT < low) | (x_BT > high))).sum()
    return sums


# Bins are uniform in asinh(x / FINE): they are about 4 % of x wide, and at least 4e-5.
FINE = 1e-3
HALF = 256  # bins on either side of the bin of 0


def count_log_ratios(x_BT: jax.Array, counted_BT: jax.Array) -> jax.Array:
    """Counts the log-ratios of `counted_BT` in each bin, float32 [2 HALF + 1].

    Log-ratios beyond +-MAX_LOG_RATIO are counted in the outermost bins.

        >>> counts = count_log_ratios(jnp.array([0.0, 0.0, 9.0]), jnp.array([True, True, False]))
        >>> float(counts[HALF]), float(counts.sum())
        (2.0, 2.0)
    """
    scaled_BT = jnp.arcsinh(x_BT / FINE) * float(HALF / np.arcsinh(MAX_LOG_RATIO / FINE))
    bin_BT = jnp.clip(jnp.round(scaled_BT), -HALF, HALF).astype(jnp.int32) + HALF
    bin_BT = jnp.where(counted_BT, bin_BT, HALF)  # an uncounted nan needs a valid bin
    # Integers, because their sum does not depend on the order of the additions.
    counts = jnp.zeros(2 * HALF + 1, jnp.int32).at[bin_BT].add(counted_BT.astype(jnp.int32))
    return counts.astype(jnp.float32)


def percentile(counts: np.ndarray, percent: float) -> float:
    """Returns the log-ratio that `percent` of the counted ones do not exceed, up to the width of a
    bin.

    counts: of `count_log_ratios`, or sums of them; at least one log-ratio was counted.

        >>> counts = count_log_ratios(jnp.array([0.0, 0.0, 0.0, 0.5]), jnp.ones(4, bool))
        >>> counts = np.asarray(counts)
        >>> percentile(counts, 75), round(percentile(counts, 76), 2)
        (0.0, 0.5)
    """
    reached = np.cumsum(counts, dtype=np.float64)
    assert reached[-1] > 0, "nothing was counted"
    found = int(np.searchsorted(reached, percent / 100.0 * reached[-1]))
    return float(np.sinh((found - HALF) / HALF * np.arcsinh(MAX_LOG_RATIO / FINE)) * FINE)


def ratio_figures(sums: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Returns metrics of the distribution of pi / pi_old in a step, over tokens (ratio_p1 ...) and
    over chunks (chunk_ratio_p1 ...). far: the share outside [0.8, 1.2]. {} if nothing was counted.

    sums: from `policy_loss`, added up over the whole step.

    Of four tokens one has become half as likely, and no chunk was counted:

        >>> tokens = count_log_ratios(jnp.log(jnp.array([1.0, 1.0, 1.0, 0.5])), jnp.ones(4, bool))
        >>> sums = {"token_ratio_bins": np.asarray(tokens), "token_ratios_far": np.float32(1.0)}
        >>> sums["chunk_ratio_bins"] = np.zeros_like(sums["token_ratio_bins"])
        >>> figures = ratio_figures(sums)
        >>> round(figures["ratio_p1"], 2), figures["ratio_p50"], figures["ratio_far"]
        (0.5, 1.0, 0.25)
    """
    figures = {}
    for unit, prefix in (("token", "ratio"), ("chunk", "chunk_ratio")):
        counts = sums[f"{unit}_ratio_bins"]
        if not counts.sum():
            continue
        for name, percent in (("p1", 1), ("p50", 50), ("p99", 99), ("max", 100)):
            figures[f"{prefix}_{name}"] = float(np.exp(percentile(counts, percent)))
        figures[f"{prefix}_far"] = float(sums[f"{unit}_ratios_far"] / counts.sum())
    return figures

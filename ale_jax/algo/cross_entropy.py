"""Cross entropy on tokens that the policy did not sample, beside its own loss: of experts'
demonstrations (imitation) and of what the environment answered (observations).

s_t is the share of token t in its unit, as in `ale_jax.algo.policy_loss`. Values of log pi at other
tokens have no influence, even if they are nan.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from ale_jax.algo.algorithm import LossHypers
from ale_jax.algo.ratio import one_over_count

Arrays = Mapping[str, jax.Array]


def imitation(logp_BT: jax.Array, batch: Arrays, num_chunks: int, hp: LossHypers) -> jax.Array:
    """-sum_t s_t i_t log pi(t), the imitation term of Eq 10 of arXiv 2512.24873, before 1/Z. i:
    imitate_BT."""
    imitated_BT = batch["imitate_BT"] != 0.0
    loss_BT = -batch["imitate_BT"] * jnp.where(imitated_BT, logp_BT, 0.0)
    return _means(loss_BT, imitated_BT, batch["segment_BT"], num_chunks, hp.aggregation).sum()


def observation_mask(chunk_BT: jax.Array, segment_BT: jax.Array) -> jax.Array:
    """Tokens that the environment wrote after the first policy token of the same trajectory, bool
    [B, T]: not the first prompt, prefix turns or padding. They include what a chat template puts
    around an observation."""
    action_mask_BT = chunk_BT >= 0
    # The trajectory that the policy wrote in last; they are numbered in the order of their row.
    acted_BT = jax.lax.cummax(jnp.where(action_mask_BT, segment_BT, 0), axis=1)
    return ~action_mask_BT & (segment_BT > 0) & (acted_BT == segment_BT)


def observations(
    logp_BT: jax.Array, batch: Arrays, num_chunks: int, hp: LossHypers
) -> tuple[jax.Array | float, dict[str, jax.Array]]:
    """-sum_t s_t o_t log pi(t), the second term of ECHO (arXiv 2605.24517), before its weight and
    1/Z, and sums for the metrics. o: `observation_mask`. Nothing is computed if the weight is 0.

    The paper takes a mean over the observation tokens. Here Z is that of all other terms, so the
    weight compares a token of an observation with one of the policy, however many there are.
    """
    if not hp.observation_weight:
        return 0.0, {}
    observed_BT = observation_mask(batch["chunk_BT"], batch["segment_BT"])
    nll_BT = -jnp.where(observed_BT, logp_BT, 0.0)
    sums = {"observation_tokens": observed_BT.sum(), "observation_nll": nll_BT.sum()}
    means_BT = _means(nll_BT, observed_BT, batch["segment_BT"], num_chunks, hp.aggregation)
    return means_BT.sum(), sums


def _means(
    loss_BT: jax.Array,
    counted_BT: jax.Array,
    segment_BT: jax.Array,
    num_chunks: int,
    aggregation: str,
) -> jax.Array:
    """The losses of tokens outside all chunks, times s: 1, or 1 / the number of counted tokens in
    the trajectory ("trajectory_means") or between two tokens that are not counted ("chunk_means").
    """
    if aggregation == "trajectory_means":
        return loss_BT * one_over_count(jnp.where(counted_BT, segment_BT - 1, -1), num_chunks)
    if aggregation == "chunk_means":
        return loss_BT * _one_over_run(counted_BT)
    return loss_BT


def _one_over_run(counted_BT: jax.Array) -> jax.Array:
    """1 / (length of the run of counted tokens around each); 0 where a token is not counted."""
    length = counted_BT.shape[1]
    place_BT = jnp.broadcast_to(jnp.arange(length)[None, :], counted_BT.shape)
    before_BT = jax.lax.cummax(jnp.where(counted_BT, -1, place_BT), axis=1)
    after_BT = jax.lax.cummin(jnp.where(counted_BT, length, place_BT), axis=1, reverse=True)
    size_BT = jnp.maximum(after_BT - before_BT - 1, 1).astype(jnp.float32)
    return jnp.where(counted_BT, 1.0 / size_BT, 0.0)

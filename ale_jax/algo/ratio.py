"""Ratios of probabilities at three levels, from differences of their logarithms.

Level "token": a token's own. "chunk" and "sequence": the geometric mean over the policy tokens of
its chunk or trajectory (Eq 8 of arXiv 2512.24873; GSPO, arXiv 2507.18071), which every one of them
is given. `num_chunks`: chunks per row at most, and so trajectories per row at most.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ale_jax.algo.chunks import chunk_mean, chunk_to_token

# exp(20) = 5e8 is far beyond any ratio of use, and a sum of such over a whole step stays finite.
# Unbounded, one token that the policy has all but abandoned would overflow and own the step.
MAX_LOG_RATIO = 20.0


def exp_log_ratio(log_ratio: jax.Array) -> jax.Array:
    """exp() of a log-ratio bounded to +-MAX_LOG_RATIO; the gradient beyond is 0."""
    return jnp.exp(jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))


def unit_ids(chunk_BT: jax.Array, segment_BT: jax.Array, level: str) -> jax.Array:
    """Id of each policy token's chunk or trajectory within its row, from 0; -1 elsewhere."""
    return chunk_BT if level == "chunk" else jnp.where(chunk_BT >= 0, segment_BT - 1, -1)


def unit_mean(
    x_BT: jax.Array, chunk_BT: jax.Array, segment_BT: jax.Array, level: str, num_chunks: int
) -> jax.Array:
    """Each policy token's own x, or its mean over the token's chunk or trajectory; 0 elsewhere."""
    if level == "token":
        return jnp.where(chunk_BT >= 0, x_BT, 0.0)
    id_BT = unit_ids(chunk_BT, segment_BT, level)
    return chunk_to_token(chunk_mean(x_BT, id_BT, num_chunks), id_BT)


def log_ratio(
    logp_BT: jax.Array,
    logp_old_BT: jax.Array,
    chunk_BT: jax.Array,
    segment_BT: jax.Array,
    level: str,
    num_chunks: int,
) -> jax.Array:
    """log pi / pi_old of each policy token at `level`; 0 elsewhere.

    Its derivative by the token's own log-probability is 1, by all others 0. Where all tokens of a
    chunk or trajectory have one advantage A, a loss of the ratio s then has, summed over them, the
    gradient of GSPO, s A sum_t d log pi(t); and where they have not, each keeps its own
    (GSPO-token, same paper). So at ratio 1 it is the plain policy gradient at every level.
    """
    own_BT = jnp.where(chunk_BT >= 0, logp_BT - logp_old_BT, 0.0)
    if level == "token":
        return own_BT
    held_BT = jax.lax.stop_gradient(own_BT)
    mean_BT = unit_mean(held_BT, chunk_BT, segment_BT, level, num_chunks)
    return mean_BT + (own_BT - held_BT)

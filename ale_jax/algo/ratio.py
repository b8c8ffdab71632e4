"""Chunk sums and means, probability ratios at three levels, and the corrections by pi_old / mu.

A chunk is everything that the policy writes between two interactions with its environment.
`chunk_BT` holds, for each token, the index within its row of the chunk that contains it: 0..C-1,
and -1 for tokens outside every chunk (observations, padding). C is static. The packer
(`ale_jax.data.packing`) guarantees that every index is below C; tokens with a larger index would be
dropped.

A ratio at level "token" is the token's own. At level "chunk" or "sequence" every policy token gets
the geometric mean over its chunk or trajectory (Eq 8 of arXiv 2512.24873; GSPO, arXiv 2507.18071).
`num_chunks` bounds the chunks per row, and therefore the trajectories per row.

Learner and sampler are separate programs, so pi_old and mu differ slightly. Tokens are filtered and
weighted by pi_old / mu at one of these levels; neither the filter nor the weight has a gradient.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from ale_jax.config.algo import MismatchHypers


def chunk_sum(x_BT: jax.Array, chunk_BT: jax.Array, num_chunks: int) -> jax.Array:
    """Sums x over each chunk's tokens, [B, C] with C = num_chunks; 0 where a chunk has no tokens.

    Values outside every chunk influence neither the result nor the gradient, even if they are nan.

        >>> chunk_BT = jnp.array([[-1, 0, 0, -1, 1]])
        >>> chunk_sum(jnp.array([[9.0, 1.0, 2.0, 9.0, 4.0]]), chunk_BT, 3).tolist()
        [[3.0, 4.0, 0.0]]
    """
    assert x_BT.shape == chunk_BT.shape, (x_BT.shape, chunk_BT.shape)
    # A masked reduction fuses on every backend. A scatter-add would save arithmetic, but GPUs add
    # in no fixed order, and a resumed run must be bit-identical to an uninterrupted one.
    member_BTC = chunk_BT[:, :, None] == jnp.arange(num_chunks)[None, None, :]
    return jnp.where(member_BTC, x_BT[:, :, None], jnp.zeros((), x_BT.dtype)).sum(axis=1)


def chunk_count(chunk_BT: jax.Array, num_chunks: int) -> jax.Array:
    """Counts the tokens of each chunk, float32 [B, C]."""
    return chunk_sum(jnp.ones(chunk_BT.shape, jnp.float32), chunk_BT, num_chunks)


def chunk_mean(x_BT: jax.Array, chunk_BT: jax.Array, num_chunks: int) -> jax.Array:
    """Averages x over each chunk's tokens, [B, C]; 0 where a chunk has no tokens.

    >>> chunk_mean(jnp.array([[9.0, 1.0, 2.0, 4.0]]), jnp.array([[-1, 0, 0, 1]]), 2).tolist()
    [[1.5, 4.0]]
    """
    count_BC = chunk_count(chunk_BT, num_chunks)
    return chunk_sum(x_BT, chunk_BT, num_chunks) / jnp.maximum(count_BC, 1.0)


def chunk_to_token(x_BC: jax.Array, chunk_BT: jax.Array) -> jax.Array:
    """Gives every token its chunk's value, [B, T]; 0 outside every chunk.

    >>> chunk_to_token(jnp.array([[5.0, 7.0]]), jnp.array([[-1, 0, 0, 1]])).tolist()
    [[0.0, 5.0, 5.0, 7.0]]
    """
    x_BT = jnp.take_along_axis(x_BC, jnp.maximum(chunk_BT, 0), axis=1)
    return jnp.where(chunk_BT >= 0, x_BT, jnp.zeros((), x_BC.dtype))


def one_over_count(chunk_BT: jax.Array, num_chunks: int) -> jax.Array:
    """Gives every token 1 / (number of tokens of its chunk), float32 [B, T]; 0 outside every chunk.

    >>> one_over_count(jnp.array([[-1, 0, 0, 1]]), 2).tolist()
    [[0.0, 0.5, 0.5, 1.0]]
    """
    count_BC = chunk_count(chunk_BT, num_chunks)
    return chunk_to_token(1.0 / jnp.maximum(count_BC, 1.0), chunk_BT)


# exp(20) = 5e8 is far above any useful ratio, and a sum of such ratios over a whole step is finite.
# Without the bound, a single token with an extreme ratio would overflow and dominate the step.
MAX_LOG_RATIO = 20.0


def exp_log_ratio(log_ratio: jax.Array) -> jax.Array:
    """Returns exp() of the log-ratio clipped to +-MAX_LOG_RATIO; the gradient beyond that is 0."""
    return jnp.exp(jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))


def unit_ids(chunk_BT: jax.Array, segment_BT: jax.Array, level: str) -> jax.Array:
    """Returns the id of each policy token's chunk or trajectory within its row, from 0; -1
    elsewhere."""
    return chunk_BT if level == "chunk" else jnp.where(chunk_BT >= 0, segment_BT - 1, -1)


def unit_mean(
    x_BT: jax.Array, chunk_BT: jax.Array, segment_BT: jax.Array, level: str, num_chunks: int
) -> jax.Array:
    """Returns each policy token's own x, or its mean over the token's chunk or trajectory, [B, T];
    0 elsewhere.

        >>> x_BT, chunk_BT = jnp.array([[9.0, 1.0, 3.0, 5.0]]), jnp.array([[-1, 0, 0, 1]])
        >>> unit_mean(x_BT, chunk_BT, jnp.ones((1, 4), int), "chunk", 2).tolist()
        [[0.0, 2.0, 2.0, 5.0]]
        >>> unit_mean(x_BT, chunk_BT, jnp.ones((1, 4), int), "sequence", 2).tolist()
        [[0.0, 3.0, 3.0, 3.0]]
    """
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
    """Returns log pi / pi_old of each policy token at `level`, float32 [B, T]; 0 elsewhere.

    Its derivative is 1 with respect to the token's own log-probability and 0 with respect to all
    others. If all tokens of a chunk or trajectory have the same advantage A, the gradient of a loss
    in the ratio s, summed over these tokens, is that of GSPO, s A sum_t d log pi(t). If their
    advantages differ, each token keeps its own (GSPO-token, same paper). At ratio 1 this is the
    plain policy gradient at every level.

    The ratios 8 and 2 of a chunk have the geometric mean 4:

        >>> logp_BT, old_BT = jnp.log(jnp.array([[0.8, 0.6]])), jnp.log(jnp.array([[0.1, 0.3]]))
        >>> chunk_BT = jnp.array([[0, 0]])
        >>> mean_BT = log_ratio(logp_BT, old_BT, chunk_BT, chunk_BT + 1, "chunk", num_chunks=1)
        >>> jnp.exp(mean_BT).round(3).tolist()
        [[4.0, 4.0]]
    """
    own_BT = jnp.where(chunk_BT >= 0, logp_BT - logp_old_BT, 0.0)
    if level == "token":
        return own_BT
    held_BT = jax.lax.stop_gradient(own_BT)
    mean_BT = unit_mean(held_BT, chunk_BT, segment_BT, level, num_chunks)
    return mean_BT + (own_BT - held_BT)


def keep_mask(
    gap_BT: jax.Array,
    chunk_BT: jax.Array,
    segment_BT: jax.Array,
    num_chunks: int,
    hp: MismatchHypers,
) -> jax.Array:
    """Marks the policy tokens that take part in the step, bool [B, T]. gap_BT: log pi_old / mu.

    At the chunk level and one-sided, this is m_c of arXiv 2512.24873. Dropping single tokens would
    train the others in a state that the learner's policy does not visit.

    A chunk whose tokens have the ratios 1.5 and 1 has the mean 1.22, and is filtered at 1.2:

        >>> gap_BT, chunk_BT = jnp.log(jnp.array([[1.5, 1.0, 1.1]])), jnp.array([[0, 0, 1]])
        >>> hp = MismatchHypers(filter_level="chunk", filter_high=1.2)
        >>> keep_mask(gap_BT, chunk_BT, jnp.ones((1, 3), int), 2, hp).tolist()
        [[False, False, True]]
    """
    action_mask_BT = chunk_BT >= 0
    if hp.filter_level == "none":
        return action_mask_BT
    gap_BT = unit_mean(gap_BT, chunk_BT, segment_BT, hp.filter_level, num_chunks)
    # Compared as logarithms, which cannot overflow.
    keep_BT = gap_BT <= math.log(hp.filter_high)
    if hp.filter_low:
        keep_BT &= gap_BT >= math.log(hp.filter_low)
    return action_mask_BT & keep_BT


def importance_weight(
    gap_BT: jax.Array,
    chunk_BT: jax.Array,
    segment_BT: jax.Array,
    num_chunks: int,
    hp: MismatchHypers,
) -> jax.Array:
    """Returns min(pi_old / mu, cap) of each policy token, float32 [B, T]; 1 if `weight_level` is
    "none".

        >>> gap_BT, chunk_BT = jnp.log(jnp.array([[0.5, 3.0]])), jnp.array([[0, 0]])
        >>> hp = MismatchHypers(weight_level="token", weight_cap=2.0)
        >>> importance_weight(gap_BT, chunk_BT, chunk_BT + 1, 1, hp).round(3).tolist()
        [[0.5, 2.0]]
    """
    if hp.weight_level == "none":
        return jnp.ones_like(gap_BT)
    gap_BT = unit_mean(gap_BT, chunk_BT, segment_BT, hp.weight_level, num_chunks)
    return jnp.minimum(exp_log_ratio(gap_BT), hp.weight_cap)

"""What is done about learner and sampler being two programs: weights and filters by pi_old / mu.

Both look at the geometric mean at a level of `ale_jax.algo.ratio`, and neither has a gradient.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from ale_jax.algo.algorithm import MismatchHypers
from ale_jax.algo.ratio import exp_log_ratio, unit_mean


def keep_mask(
    gap_BT: jax.Array,
    chunk_BT: jax.Array,
    segment_BT: jax.Array,
    num_chunks: int,
    hp: MismatchHypers,
) -> jax.Array:
    """True on the policy tokens that have a part in the step; gap_BT: log pi_old / mu.

    At the level of chunks, one-sided, it is m_c of arXiv 2512.24873: dropping single tokens would
    leave the others to be learned under a state that the learner's policy does not visit.
    """
    written_BT = chunk_BT >= 0
    if hp.filter_level == "none":
        return written_BT
    gap_BT = unit_mean(gap_BT, chunk_BT, segment_BT, hp.filter_level, num_chunks)
    # Compared as logarithms: nothing can overflow.
    keep_BT = gap_BT <= math.log(hp.filter_high)
    if hp.filter_low:
        keep_BT &= gap_BT >= math.log(hp.filter_low)
    return written_BT & keep_BT


def importance_weight(
    gap_BT: jax.Array,
    chunk_BT: jax.Array,
    segment_BT: jax.Array,
    num_chunks: int,
    hp: MismatchHypers,
) -> jax.Array:
    """min(pi_old / mu, cap) of each policy token; 1 without."""
    if hp.weight_level == "none":
        return jnp.ones_like(gap_BT)
    gap_BT = unit_mean(gap_BT, chunk_BT, segment_BT, hp.weight_level, num_chunks)
    return jnp.minimum(exp_log_ratio(gap_BT), hp.weight_cap)

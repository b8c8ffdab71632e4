"""Supervised learning on chunks that are worth imitating: Eq 1 of arXiv 2512.24873."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def sft_loss(
    logp_BT: jax.Array, chunk_BT: jax.Array, normaliser: jax.Array | float
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """-(1/Z) sum_k m_k log pi(c_k | s_k), and sums for the metrics.

    m_k = m_err * m_task is in `chunk_BT`: the tokens of a chunk with m_k = 0 are in no chunk (-1),
    as are those of observations, but stay in the context s of later ones. `normaliser` is
    Z = sum_k m_k |c_k|, counted over the whole step; at least 1, in place of the paper's epsilon.
    Entry t of `logp_BT` belongs to token t itself.
    """
    assert logp_BT.shape == chunk_BT.shape, (logp_BT.shape, chunk_BT.shape)
    learned_BT = chunk_BT >= 0
    nll = -jnp.where(learned_BT, logp_BT, 0.0).sum()
    return nll / normaliser, {"tokens": learned_BT.sum().astype(jnp.float32), "nll": nll}

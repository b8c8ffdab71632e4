"""Supervised learning: next-token cross-entropy on the tokens that chunks wrote."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def sft_loss(
    logp_BT: jax.Array, chunk_BT: jax.Array, normaliser: jax.Array | float
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """-(1/Z) sum of log pi(t) over tokens inside chunks, and sums for the metrics.

    Entry t of `logp_BT` belongs to token t itself. `normaliser` is Z, counted over the whole step.
    """
    assert logp_BT.shape == chunk_BT.shape, (logp_BT.shape, chunk_BT.shape)
    written_BT = chunk_BT >= 0
    nll = -jnp.where(written_BT, logp_BT, 0.0).sum()
    return nll / normaliser, {"tokens": written_BT.sum().astype(jnp.float32), "nll": nll}

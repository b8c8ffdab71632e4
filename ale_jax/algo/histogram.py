"""Histograms of log-ratios with fixed bins: counts add up over microbatches and hosts."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from ale_jax.algo.ratio import MAX_LOG_RATIO

# Bins are even in asinh(x / FINE): as wide as 4 % of x, and never less than 4e-5.
FINE = 1e-3
HALF = 256  # bins on either side of the one of 0


def count_log_ratios(x_BT: jax.Array, counted_BT: jax.Array) -> jax.Array:
    """How many of the counted log-ratios lie in each bin, float32 [2 HALF + 1].

    Those beyond +-MAX_LOG_RATIO lie in the outermost ones.
    """
    scaled_BT = jnp.arcsinh(x_BT / FINE) * float(HALF / np.arcsinh(MAX_LOG_RATIO / FINE))
    bin_BT = jnp.clip(jnp.round(scaled_BT), -HALF, HALF).astype(jnp.int32) + HALF
    bin_BT = jnp.where(counted_BT, bin_BT, HALF)  # a nan that is not counted needs a bin, too
    # Whole numbers: they add up to the same in whatever order.
    counts = jnp.zeros(2 * HALF + 1, jnp.int32).at[bin_BT].add(counted_BT.astype(jnp.int32))
    return counts.astype(jnp.float32)


def percentile(counts: np.ndarray, percent: float) -> float:
    """The log-ratio that `percent` of those counted do not exceed, to the width of a bin."""
    reached = np.cumsum(counts, dtype=np.float64)
    assert reached[-1] > 0, "nothing was counted"
    found = int(np.searchsorted(reached, percent / 100.0 * reached[-1]))
    return float(np.sinh((found - HALF) / HALF * np.arcsinh(MAX_LOG_RATIO / FINE)) * FINE)


def ratio_figures(sums: Mapping[str, np.ndarray]) -> dict[str, float]:
    """How pi / pi_old was distributed in a step, for the metrics: over tokens (ratio_p1 ...) and
    over chunks (chunk_ratio_p1 ...). far: the share outside [0.8, 1.2]. {} if nothing was counted.

    sums: of `policy_loss`, over the whole step.
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

"""Ratios of probabilities, from differences of their logarithms."""

from __future__ import annotations

import jax
import jax.numpy as jnp

# exp(20) = 5e8 is far beyond any ratio of use, and a sum of such over a whole step stays finite.
# Unbounded, one token that the policy has all but abandoned would overflow and own the step.
MAX_LOG_RATIO = 20.0


def exp_log_ratio(log_ratio: jax.Array) -> jax.Array:
    """exp() of a log-ratio bounded to +-MAX_LOG_RATIO; the gradient beyond is 0."""
    return jnp.exp(jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))

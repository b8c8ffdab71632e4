"""Clipping of the gradient by its norm."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax


def clip_by_norm(
    max_norm: float,
) -> optax.GradientTransformationExtraArgs:
    """Makes `optax.clip_by_global_norm`, whose update also takes the norm, as `norm`, where the
    updates are a part of the gradient. Without it, they are the whole."""

    def update(
        updates: optax.Updates,
        state: optax.EmptyState,
        params: optax.Params | None = None,
        *,
        norm: jax.Array | None = None,
        **others: Any,
    ) -> tuple[optax.Updates, optax.EmptyState]:
        del params, others
        whole = optax.tree.norm(updates) if norm is None else norm
        # A scalar that multiplies: optax divides each number.
        factor = jnp.where(whole < max_norm, 1.0, max_norm / whole)
        return jax.tree.map(lambda x: x * factor.astype(x.dtype), updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)

"""Clipping of the gradient by its norm."""

from __future__ import annotations

from typing import Any

import jax
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

        def clip(x: jax.Array) -> jax.Array:
            return jax.lax.select(whole < max_norm, x, (x / whole.astype(x.dtype)) * max_norm)

        return jax.tree.map(clip, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)

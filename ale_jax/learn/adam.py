"""AdamW in one pass over each number, where its compiler allows one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from ale_jax.learn.finite import choose

EPS = 1e-8


def adamw(
    rate: optax.Schedule, *, b1: float, b2: float, weight_decay: float
) -> optax.GradientTransformation:
    """Makes `optax.adamw`, with its state. Numbers differ in their last bits. Its update takes
    `skipped`, as those of `keeping` do.

    Both corrections of bias multiply by a scalar. optax divides each number of both moments by
    one, and divisions bound how fast a CPU computes an update.
    """
    return optax.chain(
        _scale(b1, b2),
        optax.add_decayed_weights(weight_decay),
        optax.scale_by_learning_rate(rate),
    )


def _scale(b1: float, b2: float) -> optax.GradientTransformationExtraArgs:
    def update(
        updates: optax.Updates,
        state: optax.ScaleByAdamState,
        params: optax.Params | None = None,
        *,
        skipped: jax.Array | bool = False,
        **others: Any,
    ) -> tuple[optax.Updates, optax.ScaleByAdamState]:
        del params, others
        count = optax.safe_increment(state.count)
        mu = optax.tree.update_moment(updates, state.mu, b1, 1)
        nu = optax.tree.update_moment_per_elem_norm(updates, state.nu, b2, 2)
        # Chosen before they are read: weights are then computed from what is stored. Otherwise XLA
        # computes the moments twice on CPUs, the second time from copies of the old ones.
        mu, nu = choose(skipped, (state.mu, state.nu), (mu, nu))
        first, second = (1.0 / (1.0 - b**count) for b in (b1, b2))
        scaled = jax.tree.map(lambda m, v: first * m / (jnp.sqrt(second * v) + EPS), mu, nu)
        return scaled, optax.ScaleByAdamState(choose(skipped, state.count, count), mu, nu)

    return optax.GradientTransformationExtraArgs(optax.scale_by_adam(b1, b2, EPS).init, update)


def keeping(optimizer: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Makes the same optimizer, whose update leaves the state as it is if the scalar `skipped` is
    true."""
    same = optax.with_extra_args_support(optimizer)

    def update(
        updates: optax.Updates,
        state: optax.OptState,
        params: optax.Params | None = None,
        *,
        skipped: jax.Array | bool = False,
        **others: Any,
    ) -> tuple[optax.Updates, optax.OptState]:
        updates, new = same.update(updates, state, params, **others)
        return updates, choose(skipped, state, new)

    return optax.GradientTransformationExtraArgs(same.init, update)

"""Means and standard deviations over groups of what is credited: U units, each with a key.

Units are trajectories, chunks or tokens; a key (0..num_keys-1) names the group, tag or batch that a
unit is compared within. `valid_U` False: the unit has no part in its group's figures.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

STD_FLOOR = 1e-6  # a spread this small, of rewards of order 1, is rounding


def key_mean(x_U: jax.Array, key_U: jax.Array, valid_U: jax.Array, num_keys: int) -> jax.Array:
    """Mean over the valid units of each unit's key, [U]; 0 if it has none.

    Episodes that the system lost are left out, not counted as failures: scored 0 they would
    make every surviving member look better than it was.
    """
    assert x_U.shape == key_U.shape == valid_U.shape, (x_U.shape, key_U.shape, valid_U.shape)
    member_UK = _members(key_U, valid_U, num_keys)
    value_UK = jnp.where(member_UK, x_U[:, None], 0.0)
    count_K = member_UK.sum(axis=0).astype(x_U.dtype)
    mean_K = value_UK.sum(axis=0) / jnp.maximum(count_K, 1.0)
    # Rounding can put the mean outside its members' range. A group of equals has to come out at
    # exactly zero advantage: Adam would blow a gradient of 1e-8 up into a full step.
    low_K = jnp.where(member_UK, x_U[:, None], jnp.inf).min(axis=0)
    high_K = jnp.where(member_UK, x_U[:, None], -jnp.inf).max(axis=0)
    mean_K = jnp.where(count_K > 0, jnp.clip(mean_K, low_K, high_K), 0.0)
    return mean_K[key_U]


def _members(key_U: jax.Array, valid_U: jax.Array, num_keys: int) -> jax.Array:
    return (key_U[:, None] == jnp.arange(num_keys)[None, :]) & valid_U[:, None]


def baseline(
    x_U: jax.Array, keys: Mapping[str, jax.Array], valid_U: jax.Array, num_keys: int, mean: str
) -> jax.Array:
    """What each unit is compared with, [U]: 0 ("none"), the mean over its "group", "tag" or
    "batch", or over the others of its group ("leave_one_out", RLOO, arXiv 2402.14740).

    keys: by those three names. A unit that is alone is its own baseline: nothing says more of it.
    """
    if mean == "none":
        return jnp.zeros_like(x_U)
    if mean != "leave_one_out":
        return key_mean(x_U, keys[mean], valid_U, num_keys)
    group_U = keys["group"]
    count_K = _members(group_U, valid_U, num_keys).sum(axis=0).astype(x_U.dtype)
    count_U = count_K[group_U]
    above_U = x_U - key_mean(x_U, group_U, valid_U, num_keys)
    # (n mean - x) / (n - 1), written so that equals are exactly their own baseline.
    return x_U - jnp.where(count_U > 1, count_U / jnp.maximum(count_U - 1.0, 1.0), 0.0) * above_U


def divisor(
    x_U: jax.Array, keys: Mapping[str, jax.Array], valid_U: jax.Array, num_keys: int, std: str
) -> jax.Array:
    """What each unit's advantage is divided by, [U]: 1 ("none"), or the population's standard
    deviation over its "group", "tag" or "batch". Infinite where all are equal: they teach nothing.
    """
    if std == "none":
        return jnp.ones_like(x_U)
    above_U = jnp.where(valid_U, x_U - key_mean(x_U, keys[std], valid_U, num_keys), 0.0)
    std_U = jnp.sqrt(key_mean(above_U**2, keys[std], valid_U, num_keys))
    return jnp.where(std_U > 0.0, std_U + STD_FLOOR, jnp.inf)


def standardise(
    x_U: jax.Array,
    keys: Mapping[str, jax.Array],
    valid_U: jax.Array,
    num_keys: int,
    mean: str,
    std: str,
) -> jax.Array:
    """(x - baseline) / divisor, [U]; 0 where not valid."""
    above_U = x_U - baseline(x_U, keys, valid_U, num_keys, mean)
    return jnp.where(valid_U, above_U / divisor(x_U, keys, valid_U, num_keys, std), 0.0)

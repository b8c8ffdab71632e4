"""What a checkpoint holds of a state. With adapters, these alone, and digests of the weights that
they lie beside, which do not change."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from ale_jax.learn.state import WholeState
from ale_jax.model.lora import entries
from ale_jax.model.params import Params

DIGESTS = "base_digests"


def stored(whole: WholeState, digests: Any) -> WholeState:
    """Returns what a checkpoint holds of a state, or of its abstract form. digests: of the weights
    beside adapters, or their abstract form."""
    if "adapters" not in whole.policy.params:
        return whole
    params = entries(whole.policy.params) | {DIGESTS: digests}
    return dataclasses.replace(whole, policy=dataclasses.replace(whole.policy, params=params))


def restored(found: WholeState, base: Params, digests: jax.Array) -> WholeState:
    """Returns the state that a checkpoint holds a part of. base: the weights that its adapters lie
    beside, and their `digests`. ValueError, with the names of those that are not the same."""
    differ = np.flatnonzero(np.asarray(found.policy.params[DIGESTS]) != np.asarray(digests))
    if len(differ):
        names = [
            jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(base)
        ]
        raise ValueError(
            f"the adapters of the checkpoint belong to other weights: {names[differ[0]]} is not as "
            f"it was ({len(differ)} of {len(names)} are not): give the `weights`, or without any "
            "the seed, that the run began with"
        )
    params = base | entries(found.policy.params)
    return dataclasses.replace(found, policy=dataclasses.replace(found.policy, params=params))


def digests_of(weights: Any, mesh: Mesh) -> jax.Array:
    """Returns a number for each array of a tree that changes with any of its bits, uint32,
    replicated. It does not depend on how the arrays are sharded."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    digest = jax.jit(_digest, out_shardings=everywhere)
    stack = jax.jit(jnp.stack, out_shardings=everywhere)
    return stack([digest(weight) for weight in jax.tree.leaves(weights)])


def abstract_digests(base: Params, mesh: AbstractMesh | Mesh) -> jax.ShapeDtypeStruct:
    """Returns shape, type and sharding of `digests_of`."""
    place = NamedSharding(mesh, PartitionSpec())
    return jax.ShapeDtypeStruct((len(jax.tree.leaves(base)),), jnp.uint32, sharding=place)


def _digest(weight: jax.Array) -> jax.Array:
    """The sum of a hash of each number and its index, which is the same in any order."""
    index = jnp.zeros(weight.shape, jnp.uint32)
    for dim in range(weight.ndim):
        stride = np.uint32(math.prod(weight.shape[dim + 1 :]) % 2**32)
        index += jax.lax.broadcasted_iota(jnp.uint32, weight.shape, dim) * stride
    bits = jax.lax.bitcast_convert_type(weight.astype(jnp.float32), jnp.uint32)
    # The finaliser of MurmurHash3 (Appleby), without which two changes of a sign would cancel.
    bits ^= index * np.uint32(0x9E3779B1)
    bits = (bits ^ (bits >> 16)) * np.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * np.uint32(0xC2B2AE35)
    return (bits ^ (bits >> 16)).sum(dtype=jnp.uint32)

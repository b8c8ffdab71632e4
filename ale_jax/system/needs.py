"""What a device's memory is needed for, counted from the abstract forms of arrays."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Need:
    """Bytes of one device's memory, and what they are used for."""

    what: str
    bytes: int


def total(needs: Iterable[Need]) -> int:
    """Returns the sum of their bytes."""
    return sum(need.bytes for need in needs)


def bytes_of(tree: Any) -> int:
    """Returns the bytes of one device's shards."""
    leaves = jax.tree.leaves(tree)
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * jnp.dtype(x.dtype).itemsize for x in leaves
    )


def placed(tree: Any, places: Any) -> Any:
    """Returns the abstract form of arrays with these shardings."""
    return jax.tree.map(
        lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), tree, places
    )

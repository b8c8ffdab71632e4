"""The sampler's arrays on a mesh: each device computes with its own share, and nothing travels.

The data axes divide slots, pages and rows of chunks into as many shares as devices. The pages of a
slot are pages of its own share, and their numbers count from the share's first one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from ale_jax.model.sharding import RULES


def place(dims: str, mesh: AbstractMesh | Mesh) -> PartitionSpec:
    """Of an array with these dims, by letter: slots or rows B and pages P are cut along the data
    axes, heads N and G along "tensor", others not. Dims behind those named are whole."""

    def cut(dim: str) -> tuple[str, ...] | None:
        axes = {"B": "batch", "P": "batch", "N": "heads", "G": "kv_heads"}.get(dim)
        return tuple(a for a in RULES[axes] if mesh.shape[a] > 1) or None if axes else None

    cuts = [cut(dim) for dim in dims]
    # As the compiler says of what it gives back, to the letter: else it would compile anew for it.
    while cuts and cuts[-1] is None:
        cuts.pop()
    return PartitionSpec(*cuts)


def cache_sharding(mesh: AbstractMesh | Mesh) -> NamedSharding:
    """Of the pages of every layer (model/cache.py)."""
    return NamedSharding(mesh, place("GP", mesh))


def on_each_share(dims: str) -> Callable[[Callable], Callable]:
    """For a function of arrays (or trees of them) that each device applies to its own share.

    dims: of every argument and of the result, such as "GP B -> BG" (see `place`). Without a mesh of
    several devices, and within such a function, it is called as it is.
    """
    takes, gives = (side.split() for side in dims.split("->"))

    def decorate(function: Callable) -> Callable:
        @functools.wraps(function)
        def apply(*arrays):
            mesh = jax.sharding.get_abstract_mesh()
            if mesh.empty or mesh.size == 1 or mesh.manual_axes:
                return function(*arrays)
            return jax.shard_map(
                function,
                in_specs=tuple(place(each, mesh) for each in takes),
                out_specs=place(*gives, mesh),
                check_vma=False,
            )(*arrays)

        return apply

    return decorate

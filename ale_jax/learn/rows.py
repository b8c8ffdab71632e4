"""The rows of batches, on a mesh that several processes may share.

A process places and reads only the rows of its own devices, so that no process compares arrays with
the others, and no program gathers a batch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ale_jax.model.sharding import batch_sharding, row_axes


@dataclasses.dataclass(frozen=True)
class OwnRows:
    """The rows of an array that one process has.

    own: these, in order. shape: of the whole array.
    """

    own: np.ndarray
    shape: tuple[int, ...]


def to_device(batch: Any, mesh: Mesh) -> dict[str, jax.Array]:
    """Places the arrays of a `Batch` or a similar record on the mesh, and returns them by name.
    Rows are sharded over the mesh's data axes. The record's arrays are whole, or the `OwnRows` of
    this process."""
    sharding = batch_sharding(mesh)
    return {
        name: _place(array, sharding) for name, array in vars(batch).items() if array is not None
    }


def _place(array: Any, sharding: NamedSharding) -> jax.Array:
    if sharding.is_fully_addressable:
        return jax.device_put(np.asarray(array), sharding)
    if not isinstance(array, OwnRows):
        whole = np.asarray(array)
        rows = process_rows(sharding.mesh, len(whole), jax.process_index())
        array = OwnRows(whole[rows], whole.shape)
    return jax.make_array_from_process_local_data(sharding, array.own, array.shape)


@functools.lru_cache(maxsize=64)
def process_rows(mesh: Mesh, num_rows: int, process: int) -> np.ndarray:
    """Returns the rows of a batch that are on the devices of `process`, ascending."""
    places: Mapping[jax.Device, Any] = batch_sharding(mesh).devices_indices_map((num_rows,))
    own = [np.arange(num_rows)[rows] for d, (rows,) in places.items() if d.process_index == process]
    return np.unique(np.concatenate(own))


def with_rows(array: jax.Array) -> jax.Array:
    """Returns the same array [B, ...] in a program, on a mesh sharded by rows alone."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return array
    return jax.lax.with_sharding_constraint(array, PartitionSpec(row_axes(array.shape[0], mesh)))


def own_rows(array: jax.Array) -> np.ndarray:
    """Returns the rows [B, ...] that are on this process's devices, ascending; all of them if it is
    alone. The other dimensions must be whole on these devices, divided or not."""
    if array.is_fully_addressable:
        return np.asarray(array)
    shards = {str(shard.index): shard for shard in array.addressable_shards}.values()
    every = np.arange(array.shape[0])
    rows = np.unique(np.concatenate([every[shard.index[0]] for shard in shards]))
    found = np.empty((len(rows), *array.shape[1:]), array.dtype)
    for shard in shards:
        own = every[shard.index[0]]
        at = np.searchsorted(rows, own[0])
        found[(slice(at, at + len(own)), *shard.index[1:])] = np.asarray(shard.data)
    return found


def join_rows(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Joins the whole array from (rows, values of these rows) of every process.

    >>> first, second = (np.array([0, 3]), np.array([5, 8])), (np.array([1, 2]), np.array([6, 7]))
    >>> join_rows([first, second]).tolist()
    [5, 6, 7, 8]
    """
    first = parts[0][1]
    count = max(int(rows[-1]) for rows, _ in parts) + 1
    whole = np.empty((count, *first.shape[1:]), first.dtype)
    for rows, values in parts:
        whole[rows] = values
    return whole

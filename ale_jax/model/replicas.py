"""The weights that each process samples with, on its own devices.

Where several processes train together, the learner's mesh spans their devices. A decode step must
not wait for other hosts, so each process has an engine of its own, or several, each with a whole
copy of the weights divided over its devices. One program for each form of layer makes all copies
from the learner's shards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.model import Compute
from ale_jax.model.compute import (
    in_parts,
    join_parts,
    sampler_shardings,
    sampling_weights,
    served_weights,
)
from ale_jax.model.params import Params

REPLICA = "replica"


def is_shared(mesh: Mesh) -> bool:
    """Returns whether a mesh spans the devices of several processes."""
    return len({device.process_index for device in mesh.devices.flat}) > 1


def engine_sizes(mesh: Mapping[str, int], devices: int) -> dict[str, int]:
    """Axes of the mesh of an engine on so many devices: the learner's, if it has all of them and
    none along context, whose tokens a decode step does not have. Otherwise experts and heads are
    divided among them as there. ValueError if they cannot be."""
    if devices == math.prod(mesh.values()) and mesh["context"] == 1:
        return dict(mesh)
    inner = mesh["expert"] * mesh["tensor"]
    if devices % inner:
        raise ValueError(
            f"mesh.expert {mesh['expert']} x mesh.tensor {mesh['tensor']} does not divide the "
            f"{devices} devices of an engine: lower them, and set mesh.fsdp or mesh.data instead"
        )
    return dict(mesh) | {"data": devices // inner, "fsdp": 1, "context": 1}


def devices_of_engine(of_process: int, devices_per_engine: int) -> int:
    """Returns how many devices an engine has. devices_per_engine: 0 for all devices of a process.
    ValueError if it does not divide them."""
    if of_process % (devices_per_engine or of_process):
        raise ValueError(
            f"rollout.devices_per_engine {devices_per_engine} does not divide the {of_process} "
            "devices of a process"
        )
    return devices_per_engine or of_process


def engine_meshes(mesh: Mesh, devices_per_engine: int) -> list[Mesh]:
    """Returns the meshes of this process's engines, see `engine_sizes`. devices_per_engine: see
    `devices_of_engine`."""
    blocks = _by_engine(mesh, devices_per_engine)
    sizes = engine_sizes(mesh.shape, blocks.shape[1])
    return [
        Mesh(block.reshape(tuple(sizes.values())), mesh.axis_names, axis_types=mesh.axis_types)
        for block in blocks
        if block[0].process_index == jax.process_index()
    ]


def _by_engine(mesh: Mesh, devices_per_engine: int) -> np.ndarray:
    """The devices of each engine of each process, [E, n]."""
    blocks = _by_process(mesh) if is_shared(mesh) else mesh.devices.reshape(1, -1)
    return blocks.reshape(-1, devices_of_engine(blocks.shape[1], devices_per_engine))


def _by_process(mesh: Mesh) -> np.ndarray:
    """The devices of each process, [P, n], in the order of the mesh. ValueError unless it goes
    through one process after another."""
    devices = mesh.devices.ravel()
    processes = len({device.process_index for device in devices})
    blocks = devices.reshape(processes, -1)
    if any(len({device.process_index for device in block}) > 1 for block in blocks):
        raise ValueError(
            f"mesh {dict(mesh.shape)} interleaves the devices of several processes: set mesh.data "
            "or mesh.fsdp, its first axes, to a multiple of the number of processes"
        )
    return blocks


def make_sampling_copy(
    policy: PolicyShape, compute: Compute, mesh: Mesh, stored_as: str, devices_per_engine: int = 0
) -> Callable[[Params], list[Params]]:
    """Makes the function from the learner's weights to those of each of this process's engines; see
    `sampling_weights`. If other processes share the mesh, all of them must call it at once.

    `mesh` is the learner's, over which the given weights are sharded. `own` are the meshes of this
    process's engines, on which the result is used. `copies` has the axes of an engine and, before
    them, one that counts all engines of all processes: a program whose results are sharded over the
    others alone leaves a whole copy with each engine. JAX takes a program only if `copies` lists
    the devices as `mesh` does, and `_on_mesh` relabels a device's part without moving it, so that
    an engine's devices must come in the same order in `own` as in `copies`.
    """
    own = engine_meshes(mesh, devices_per_engine)
    if own == [mesh]:
        return lambda params: [sampling_weights(params, policy, compute, mesh, stored_as)]
    blocks = _by_engine(mesh, devices_per_engine)
    copies = Mesh(blocks.reshape(len(blocks), *own[0].devices.shape), (REPLICA, *mesh.axis_names))
    programs: dict[PolicyShape, Callable[[Params], Params]] = {}

    def copy_part(part: Params, shape: PolicyShape) -> list[Params]:
        def serve(weights: Params) -> Params:
            return served_weights(weights, shape, compute.compute_dtype, stored_as)

        if shape not in programs:
            places = sampler_shardings(jax.eval_shape(serve, part), shape, own[0])
            spread = jax.tree.map(lambda place: NamedSharding(copies, place.spec), places)
            programs[shape] = jax.jit(serve, out_shardings=spread)
        copied = programs[shape](part)
        return [jax.tree.map(partial(_on_mesh, mesh=each), copied) for each in own]

    def copy(params: Params) -> list[Params]:
        parts = [copy_part(*each) for each in in_parts(params, policy)]
        return [join_parts(of_engine) for of_engine in zip(*parts, strict=True)]

    return copy


def _on_mesh(array: jax.Array, mesh: Mesh) -> jax.Array:
    """The copy of an engine, as an array of its devices alone."""
    assert isinstance(array.sharding, NamedSharding)
    place, devices = NamedSharding(mesh, array.sharding.spec), set(mesh.devices.flat)
    shards = [shard.data for shard in array.addressable_shards if shard.device in devices]
    return jax.make_array_from_single_device_arrays(array.shape, place, shards)

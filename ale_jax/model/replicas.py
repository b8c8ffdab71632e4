"""The weights that each process samples with, on its own devices.

Where several processes train together, the learner's mesh spans their devices. A decode step must
not wait for other hosts, so each process has an engine of its own, with a whole copy of the weights
divided over its devices. One program for each form of layer makes all copies from the learner's
shards.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from ale_jax.model.compute import (
    Compute,
    in_parts,
    join_parts,
    sampler_shardings,
    sampling_weights,
    served_weights,
)
from ale_jax.model.params import Params
from ale_jax.model.shape import PolicyShape

REPLICA = "replica"


def is_shared(mesh: Mesh) -> bool:
    """Whether a mesh spans the devices of several processes."""
    return len({device.process_index for device in mesh.devices.flat}) > 1


def engine_mesh(mesh: Mesh) -> Mesh:
    """The mesh of this process's engine: `mesh` itself, or, if other processes share it, this
    process's devices, among which experts and heads are divided as on `mesh`.

    ValueError if they cannot be.
    """
    if not is_shared(mesh):
        return mesh
    blocks = _by_process(mesh)
    sizes, count = dict(mesh.shape), blocks.shape[1]
    inner = sizes["expert"] * sizes["tensor"]
    if count % inner:
        raise ValueError(
            f"mesh.expert {sizes['expert']} x mesh.tensor {sizes['tensor']} does not divide the "
            f"{count} devices of a process, on which its engine samples: lower them, and set "
            "mesh.fsdp or mesh.data instead"
        )
    own = sizes | {"data": count // inner, "fsdp": 1, "context": 1}
    devices = blocks[[block[0].process_index for block in blocks].index(jax.process_index())]
    kinds = mesh.axis_types
    return Mesh(devices.reshape(tuple(own.values())), mesh.axis_names, axis_types=kinds)


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
    policy: PolicyShape, compute: Compute, mesh: Mesh, stored_as: str
) -> Callable[[Params], Params]:
    """Makes the function from the learner's weights to those of this process's engine; see
    `sampling_weights`. If other processes share the mesh, all of them must call it at once."""
    if not is_shared(mesh):
        return lambda params: sampling_weights(params, policy, compute, mesh, stored_as)
    own, blocks = engine_mesh(mesh), _by_process(mesh)
    copies = Mesh(blocks.reshape(len(blocks), *own.devices.shape), (REPLICA, *own.axis_names))
    programs: dict[PolicyShape, tuple[Callable[[Params], Params], Params]] = {}

    def copy_part(part: Params, shape: PolicyShape) -> Params:
        def serve(weights: Params) -> Params:
            return served_weights(weights, shape, compute.dtype, stored_as)

        if shape not in programs:
            places = sampler_shardings(jax.eval_shape(serve, part), shape, own)
            spread = jax.tree.map(lambda place: NamedSharding(copies, place.spec), places)
            programs[shape] = jax.jit(serve, out_shardings=spread), places
        program, places = programs[shape]
        return jax.tree.map(_local, program(part), places)

    def copy(params: Params) -> Params:
        return join_parts([copy_part(*each) for each in in_parts(params, policy)])

    return copy


def _local(array: jax.Array, place: NamedSharding) -> jax.Array:
    """This process's copy, as an array of its devices alone."""
    shards = [shard.data for shard in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(array.shape, place, shards)

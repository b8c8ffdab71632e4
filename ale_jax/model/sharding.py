"""How arrays are sharded: a mesh with named axes, and one table from logical to mesh axes. Programs
on a mesh are dispatched in one order."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import jax
import numpy as np
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.hardware import MeshShape
from ale_jax.model.params import Params, is_param, param_table

# Logical axis of a weight or a batch -> mesh axes. None, or an axis not listed, means replicated.
RULES: dict[str, tuple[str, ...]] = {
    "batch": ("data", "fsdp", "expert"),
    "sequence": ("context",),
    "vocab": ("tensor",),
    "embed": ("fsdp",),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "experts": ("expert",),
    "ffw": ("tensor",),
}
# For the weights that the sampler reads in every decode step, where none may be gathered.
SAMPLER_RULES = {axis: places for axis, places in RULES.items() if axis != "embed"}

_ORDERS: dict[jax.Device, threading.RLock] = {}
_AUTO = (AxisType.Auto,)  # the compiler shards what we do not


def mesh_sizes(shape: MeshShape, devices: int) -> dict[str, int]:
    """Returns the number of devices along each axis. ValueError if their product is not
    `devices`."""
    given = dataclasses.asdict(shape)
    others = math.prod(size for axis, size in given.items() if axis != "data")
    if shape.data != -1 and shape.data * others != devices:
        raise ValueError(
            f"mesh {given} needs {shape.data * others} devices, there are {devices}: "
            "set mesh.data = -1, or sizes whose product is the number of devices"
        )
    if devices % others:
        raise ValueError(
            f"mesh {given} needs a multiple of {others} devices, there are {devices}: "
            "set sizes whose product divides the number of devices"
        )
    return given | {"data": devices // others}


def make_mesh(shape: MeshShape, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Returns a mesh over these devices, or over all of the run; one device is a mesh of ones."""
    count = jax.device_count() if devices is None else len(devices)
    sizes = mesh_sizes(shape, count)
    lengths, names, kinds = tuple(sizes.values()), tuple(sizes), _AUTO * len(sizes)
    try:
        return jax.make_mesh(lengths, names, axis_types=kinds, devices=devices)
    except AssertionError:  # jax orders TPUs by their links, but only those that fill a box
        if devices is None:
            raise
        return Mesh(np.array(devices).reshape(lengths), names, axis_types=kinds)


def current_device() -> jax.Device | AbstractDevice:
    """Returns a device that programs are traced for now: of the current mesh (`jax.set_mesh`), or
    of JAX's default backend."""
    mesh = jax.sharding.get_abstract_mesh()
    return jax.devices()[0] if mesh.empty else mesh.abstract_device


def abstract_mesh(sizes: Mapping[str, int]) -> AbstractMesh:
    """Returns a mesh of devices that need not be present."""
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=_AUTO * len(sizes))


def spec(
    axes: tuple[str | None, ...], rules: Mapping[str, tuple[str, ...]] = RULES
) -> PartitionSpec:
    """Returns the PartitionSpec of an array with these logical axes. No two of them may use the
    same mesh axis."""
    entries = [rules.get(axis) if axis else None for axis in axes]
    used = [mesh_axis for entry in entries if entry for mesh_axis in entry]
    assert len(used) == len(set(used)), f"axes {axes} share a mesh axis: {used}"
    return PartitionSpec(*entries)


def param_shardings(
    shape: PolicyShape,
    mesh: AbstractMesh | Mesh,
    rules: Mapping[str, tuple[str, ...]] = RULES,
) -> Params:
    """Returns the sharding of every weight, in the layout of the weights themselves.

    ValueError if a weight cannot be divided evenly over the mesh.
    """
    return table_shardings(param_table(shape), mesh, rules)


def table_shardings(
    table: Params, mesh: AbstractMesh | Mesh, rules: Mapping[str, tuple[str, ...]] = RULES
) -> Params:
    """`param_shardings` of the weights that a table describes."""

    def place(path, param):
        sharding = NamedSharding(mesh, spec(param.axes, rules))
        for size, axis in zip(param.shape, param.axes, strict=True):
            along = rules.get(axis, ())
            parts = math.prod(mesh.shape[a] for a in along)
            if size % parts:
                name = jax.tree_util.keystr(path)
                fields = " and ".join(f"mesh.{a} {mesh.shape[a]}" for a in along)
                raise ValueError(
                    f"{fields} cannot cut weight {name} of shape {param.shape} along its {axis}: "
                    "choose sizes that divide the model's"
                )
        return sharding

    return jax.tree_util.tree_map_with_path(place, table, is_leaf=is_param)


def row_axes(rows: int, mesh: AbstractMesh | Mesh) -> tuple[str, ...]:
    """Returns the mesh axes of a batch that this many rows can be divided over. Along the other
    axes, each row is on every device."""
    axes, parts = [], 1
    for axis in RULES["batch"]:
        if mesh.shape[axis] > 1 and rows % (parts * mesh.shape[axis]) == 0:
            axes.append(axis)
            parts *= mesh.shape[axis]
    return tuple(axes)


def num_data_shards(mesh: AbstractMesh | Mesh) -> int:
    """Returns the number of shards that the data axes divide an array into."""
    return math.prod(mesh.shape[axis] for axis in RULES["batch"])


def sequence_axis(tokens: int, mesh: AbstractMesh | Mesh) -> str | None:
    """Returns the mesh axis that the tokens of a row are divided over; None if they cannot be."""
    (axis,) = RULES["sequence"]
    return axis if tokens % mesh.shape[axis] == 0 else None


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Divides the rows of a batch over the data axes."""
    return NamedSharding(mesh, spec(("batch",)))


def check_rows(rows: int, mesh: AbstractMesh | Mesh) -> None:
    """Raises ValueError unless a batch of this many rows can be divided over the mesh."""
    parts = num_data_shards(mesh)
    if rows % parts:
        raise ValueError(
            f"batch rows {rows} must be a multiple of the mesh's data axes, {parts}: "
            f"set learn.microbatch_rows to {-(-rows // parts) * parts}"
        )


@contextlib.contextmanager
def dispatching(mesh: Mesh | None) -> Iterator[None]:
    """Lets no other thread dispatch programs to a device of the mesh within the block.

    The learner and each engine dispatch programs from threads of their own. A program on several
    devices waits for all of them. If one device is given the programs of two threads in one order,
    and another device in the other order, each waits for the other forever. Whoever need not read
    the result should leave the block when the program is dispatched. A mesh of one device needs no
    order, and meshes that share no device need none between them.
    """
    with contextlib.ExitStack() as held:
        if mesh is not None and mesh.devices.size > 1:
            for order in _orders(mesh):
                held.enter_context(order)
        yield


@cache
def _orders(mesh: Mesh) -> list[threading.RLock]:
    """The locks of this process's devices, always in the same order."""
    devices = sorted(mesh.local_devices, key=lambda device: device.id)
    return [_ORDERS.setdefault(device, threading.RLock()) for device in devices]

"""The weights that each process samples with, on its own devices.

Where several processes train together, the learner's mesh spans their devices. A decode step must
not wait for other hosts, so each process has an engine of its own, or several, each with a whole
copy of the weights divided over its devices. One program for each form of layer makes all copies
from the learner's shards. Engines that have devices for themselves are sent what the program makes
on the learner's devices of their process.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.model import Compute
from ale_jax.model.lora import entries, without_adapters
from ale_jax.model.params import Params
from ale_jax.model.sampling_weights import (
    adapter_shardings,
    in_parts,
    join_parts,
    sampler_shardings,
    sampling_adapters,
    sampling_base,
    served_adapters,
    served_weights,
)

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
            "devices of a process that sample"
        )
    return devices_per_engine or of_process


def engine_meshes(mesh: Mesh, devices_per_engine: int, engine_devices: int = 0) -> list[Mesh]:
    """Returns the meshes of this process's engines, see `engine_sizes`. mesh: the learner's.
    devices_per_engine: see `devices_of_engine`. engine_devices: those that the engines have for
    themselves, the last ones of the process; 0: they have the learner's."""
    if engine_devices:
        apart = np.array(jax.local_devices()[-engine_devices:])
        assert set(apart).isdisjoint(mesh.devices.flat), "the learner has only the others"
        blocks = apart.reshape(-1, devices_of_engine(engine_devices, devices_per_engine))
    else:
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


class SamplingCopy:
    """The function from the learner's weights to those of each of this process's engines; see
    `sampling_weights`. If other processes share the mesh, all of them must call it at once.

    Weights that adapters lie beside are copied once, and stay with the engines: later calls move
    the adapters alone.
    """

    def __init__(
        self,
        policy: PolicyShape,
        compute: Compute,
        mesh: Mesh,
        stored_as: str,
        engines: Sequence[Mesh],
    ):
        """mesh: the learner's, over which the given weights are sharded. engines: `engine_meshes`
        of it."""
        if engines[0].devices.flat[0] in mesh.devices:
            self._copies = _copies(policy, compute, mesh, stored_as, engines)
        else:
            near = _copies(policy, compute, mesh, stored_as, engine_meshes(mesh, 0))
            self._copies = _Apart(near, policy, engines)
        self._base: tuple[Params, list[Params]] | None = None  # of which weights, and the copies

    def __call__(self, params: Params) -> list[Params]:
        if "adapters" not in params:
            return self._copies.base(params)
        base = without_adapters(params)
        if self._base is None or not _same_arrays(self._base[0], base):
            self._base = base, self._copies.base(base)
        adapters = self._copies.adapters(entries(params))
        pairs = zip(self._base[1], adapters, strict=True)
        return [weights | {"adapters": each} for weights, each in pairs]


def _same_arrays(one: Params, other: Params) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(a is b for a, b in pairs)


class _Copies(Protocol):
    """Makes the copies of each engine of this process."""

    def base(self, params: Params) -> list[Params]:
        """Of weights without adapters."""

    def adapters(self, params: Params) -> list[list[Params]]:
        """Of adapters, `entries`."""


def _copies(
    policy: PolicyShape, compute: Compute, mesh: Mesh, stored_as: str, engines: Sequence[Mesh]
) -> _Copies:
    """Of engines on the learner's devices."""
    if engines == [mesh]:
        return _OnMesh(policy, compute, mesh, stored_as)
    blocks = _by_engine(mesh, engines[0].size)
    return _OnEngines(policy, compute.compute_dtype, stored_as, engines, blocks)


@dataclasses.dataclass(frozen=True)
class _Apart:
    """For engines on other devices of the process than the learner's, on which `near` makes one
    copy.

    That copy is cut along `expert` and `tensor` as each engine's is, so that every part which a
    device needs is whole on another one, and is sent from there without passing through the host.
    Nobody waits for it but the engine's next dispatch.
    """

    near: _Copies
    policy: PolicyShape
    engines: Sequence[Mesh]

    def base(self, params: Params) -> list[Params]:
        (near,) = self.near.base(params)
        places = (sampler_shardings(near, self.policy, mesh) for mesh in self.engines)
        return [jax.device_put(near, each) for each in places]

    def adapters(self, params: Params) -> list[list[Params]]:
        (near,) = self.near.adapters(params)
        places = (adapter_shardings(near, self.policy, mesh) for mesh in self.engines)
        return [jax.device_put(near, each) for each in places]


@dataclasses.dataclass(frozen=True)
class _OnMesh:
    """For the one engine that has the learner's mesh."""

    policy: PolicyShape
    compute: Compute
    mesh: Mesh
    stored_as: str

    def base(self, params: Params) -> list[Params]:
        return [sampling_base(params, self.policy, self.compute, self.mesh, self.stored_as)]

    def adapters(self, params: Params) -> list[list[Params]]:
        dtype = self.compute.compute_dtype
        return [sampling_adapters(params, self.policy, dtype, self.mesh)]


class _OnEngines:
    """For engines that have meshes of their own.

    `own` are the meshes of this process's engines, on which the result is used. `copies` has the
    axes of an engine and, before them, one that counts all engines of all processes: a program
    whose results are sharded over the others alone leaves a whole copy with each engine. JAX takes
    a program only if `copies` lists the devices as the learner's mesh does, and `_on_mesh` relabels
    a device's part without moving it, so that an engine's devices must come in the same order in
    `own` as in `copies`.
    """

    def __init__(
        self,
        policy: PolicyShape,
        dtype: str,
        stored_as: str,
        own: Sequence[Mesh],
        blocks: np.ndarray,
    ):
        """blocks: the devices of each engine of each process, [E, n]."""
        self._policy, self._dtype, self._stored_as, self._own = policy, dtype, stored_as, own
        axes = (REPLICA, *own[0].axis_names)
        self._copies = Mesh(blocks.reshape(len(blocks), *own[0].devices.shape), axes)
        self._programs: dict[Any, Callable[[Params], Any]] = {}  # by the shape of the part

    def base(self, params: Params) -> list[Params]:
        parts = [self._part(*each) for each in in_parts(params, self._policy)]
        return [join_parts(of_engine) for of_engine in zip(*parts, strict=True)]

    def _part(self, part: Params, shape: PolicyShape) -> list[Params]:
        def serve(weights: Params) -> Params:
            return served_weights(weights, shape, self._dtype, self._stored_as)

        return self._spread(serve, part, shape, partial(sampler_shardings, shape=shape))

    def adapters(self, params: Params) -> list[list[Params]]:
        serve = partial(served_adapters, dtype=self._dtype)
        places = partial(adapter_shardings, shape=self._policy)
        return self._spread(serve, params, "adapters", places)

    def _spread(
        self, serve: Callable[[Params], Any], params: Params, key: Any, places: Callable[..., Any]
    ) -> list[Any]:
        """What `serve` makes of the learner's arrays, for each engine of this process. key: of the
        program. places: of (result, mesh=...) the shardings."""
        if key not in self._programs:
            on_engine = places(jax.eval_shape(serve, params), mesh=self._own[0])
            spread = jax.tree.map(lambda place: NamedSharding(self._copies, place.spec), on_engine)
            self._programs[key] = jax.jit(serve, out_shardings=spread)
        copied = self._programs[key](params)
        return [jax.tree.map(partial(_on_mesh, mesh=each), copied) for each in self._own]


def _on_mesh(array: jax.Array, mesh: Mesh) -> jax.Array:
    """The copy of an engine, as an array of its devices alone."""
    assert isinstance(array.sharding, NamedSharding)
    place, devices = NamedSharding(mesh, array.sharding.spec), set(mesh.devices.flat)
    shards = [shard.data for shard in array.addressable_shards if shard.device in devices]
    return jax.make_array_from_single_device_arrays(array.shape, place, shards)

"""The weights that a sampler is given: where a decode step reads them, in the type that it uses.

Weights that adapters lie beside do not change: they are converted once, and later versions are the
adapters alone.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.model import SAME, Compute
from ale_jax.model.compute import Quantised, Weight, cast_layer, quantise_layers
from ale_jax.model.lora import adapter_table, entries, scaled_adapters, without_adapters
from ale_jax.model.params import Params
from ale_jax.model.sharding import RULES, SAMPLER_RULES, param_shardings, table_shardings


def sampling_weights(
    params: Params,
    shape: PolicyShape,
    compute: Compute,
    mesh: Mesh | None = None,
    stored_as: str = SAME,
) -> Params:
    """Returns the weights that a sampler is given, with adapters if `params` has some.

    Their type is that of the learner's products, so that both compute the same. Each weight is
    placed where a decode step needs it (SAMPLER_RULES), so that it is transferred once and not in
    every step. If `stored_as` says so, matrices are quantised, and then the two do not compute
    exactly the same. Weights are the same arrays if there is nothing to do.
    """
    base = sampling_base(params, shape, compute, mesh, stored_as)
    if "adapters" not in params:
        return base
    adapters = sampling_adapters(entries(params), shape, compute.compute_dtype, mesh)
    return base | {"adapters": adapters}


def sampling_base(
    params: Params, shape: PolicyShape, compute: Compute, mesh: Mesh | None, stored_as: str
) -> Params:
    """Returns `sampling_weights` without the adapters."""
    base = without_adapters(params)
    if not has_own_weights(compute, mesh, stored_as):
        return base
    return join_parts(
        [
            sampling_part(part, part_shape, compute.compute_dtype, mesh, stored_as)
            for part, part_shape in in_parts(base, shape)
        ]
    )


def in_parts(params: Params, shape: PolicyShape) -> list[tuple[Params, PolicyShape]]:
    """Splits weights without adapters into what is outside of the layers, and each layer. Returns
    each part with the shape of a model that has this part alone.

    One program for all of them would hold all layers twice: in the places from which a decode step
    reads them, and on the way there. Layers of one form share a program.
    """
    parts = [(params | {"layers": []}, dataclasses.replace(shape, layers=()))]
    for kind, layer in zip(shape.layers, params["layers"], strict=True):
        parts.append(({"layers": [layer]}, dataclasses.replace(shape, layers=(kind,))))
    return parts


def join_parts(parts: Sequence[Params]) -> Params:
    """Joins what was made of the parts."""
    outside, *layers = parts
    return outside | {"layers": [layer for part in layers for layer in part["layers"]]}


def has_own_weights(compute: Compute, mesh: AbstractMesh | Mesh | None, stored_as: str) -> bool:
    """Returns whether a sampler needs other arrays than the learner's, beside adapters."""
    is_cut = mesh is not None and any(mesh.shape[axis] > 1 for axis in RULES["embed"])
    return compute.compute_dtype != "float32" or is_cut or stored_as != SAME


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4))
def sampling_part(
    params: Params, shape: PolicyShape, dtype: str, mesh: Mesh | None, stored_as: str
) -> Params:
    """Returns a part of `sampling_base`; see `in_parts`."""
    params = served_weights(params, shape, dtype, stored_as)
    if mesh is None:
        return params
    return jax.lax.with_sharding_constraint(params, sampler_shardings(params, shape, mesh))


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def sampling_adapters(
    params: Params, shape: PolicyShape, dtype: str, mesh: Mesh | None
) -> list[Params]:
    """Returns the adapters that a sampler is given. params: the `entries` of the learner's."""
    adapters = served_adapters(params, dtype)
    if mesh is None:
        return adapters
    return jax.lax.with_sharding_constraint(adapters, adapter_shardings(adapters, shape, mesh))


def sampler_shardings(params: Params, shape: PolicyShape, mesh: AbstractMesh | Mesh) -> Params:
    """Returns the sharding of each array of a sampler's weights. params: these weights, or their
    shapes, or a part of them."""

    def place(sharding: NamedSharding, stored: Weight) -> NamedSharding | Quantised:
        if not isinstance(stored, Quantised):
            return sharding
        # A scale has size 1 along the dims that are summed over, and is not sharded there.
        cut = zip(stored.scale.shape, sharding.spec, strict=True)
        spec = PartitionSpec(*(axes if size > 1 else None for size, axes in cut))
        return Quantised(sharding, NamedSharding(mesh, spec))

    places = param_shardings(shape, mesh, SAMPLER_RULES)
    return jax.tree.map(place, {name: places[name] for name in params}, params)


def adapter_shardings(adapters: list[Params], shape: PolicyShape, mesh: AbstractMesh | Mesh) -> Any:
    """Returns the sharding of each array of a sampler's adapters: that of their maps, and whole
    along the rank. adapters: or their shapes."""
    table: Any = adapter_table(shape, adapters, rank=1)
    return table_shardings(table, mesh, SAMPLER_RULES)


def served_weights(params: Params, shape: PolicyShape, dtype: str, stored_as: str) -> Params:
    """Returns the values that a sampler is given, without their sharding, of all weights or a part,
    which have no adapters."""
    if stored_as != SAME:
        params = quantise_layers(params, shape, stored_as)
    layers = [cast_layer(layer, dtype) for layer in params["layers"]]
    return cast_layer({k: w for k, w in params.items() if k != "layers"}, dtype) | {
        "layers": layers
    }


def served_adapters(params: Params, dtype: str) -> list[Params]:
    """Returns the values of the adapters that a sampler is given, without their sharding."""
    return jax.tree.map(lambda each: each.astype(dtype), scaled_adapters(params))

"""Low-rank adapters of linear maps (Hu et al. 2021): x W + scale * (x A) B with W frozen.

Weights with adapters are the policy's own tree with two more entries: "adapters", the only part
that is trained, and "adapter_scale". A sampler's have only the first, which is scaled already.
Layers are given `adapted_layers`; code that does not handle adapters is given `merged` weights.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.model import ALL_LINEAR, LoraShape
from ale_jax.model.compute import USES, Adapted
from ale_jax.model.params import Dims, Init, Param, Params, init_table, param_table

RANK = -1  # stands for the adapter's rank among the dims of a map
ENTRIES = ("adapters", "adapter_scale")


def trained_table(shape: PolicyShape, lora: LoraShape) -> Any:
    """Returns the weights that are trained, as a tree of `Param`: the adapters of each layer, or
    all weights."""
    table = param_table(shape)
    if not lora.rank:
        return table
    return adapter_table(shape, chosen_maps(shape, lora.targets), lora.rank)


def chosen_maps(shape: PolicyShape, targets: Sequence[str]) -> list[list[str]]:
    """Returns the names of the weights in each layer that are a target of adapters. ValueError if
    there is none of a target."""
    maps = [
        [name for name, param in layer.items() if param.matrix]
        for layer in param_table(shape)["layers"]
    ]
    for target in targets:
        if not any(_is(target, n, name) for n, names in enumerate(maps) for name in names):
            known = ", ".join(dict.fromkeys(map_name(name) for names in maps for name in names))
            raise ValueError(
                f"lora.targets {target!r:.80} fits no linear map of the {len(maps)} layers: choose "
                f"{ALL_LINEAR}, some of {known}, or patterns of layers.NUMBER.NAME"
            )
    return [
        [name for name in names if any(_is(target, n, name) for target in targets)]
        for n, names in enumerate(maps)
    ]


def _is(target: str, layer: int, name: str) -> bool:
    if target in (ALL_LINEAR, map_name(name)):
        return True
    return fnmatchcase(f"layers.{layer}.{map_name(name)}", target)


def map_name(weight: str) -> str:
    """Returns the name of a linear map without its dims: `gate` for `gate_EDF`."""
    return weight.rpartition("_")[0]


def adapter_table(shape: PolicyShape, names: Sequence[Collection[str]], rank: int) -> list[Params]:
    """Returns the adapters of the maps of these names in each layer, as a tree of `Param`.

    The adapter of a map [in, out], or of a stack [E, in, out], is "a" [.., in, rank] and "b" [..,
    rank, out], sharded along the mesh as the map is. b starts at 0, so that adapters change nothing
    at first.
    """
    return [
        {name: _adapter(layer[name], rank) for name in of_layer}
        for layer, of_layer in zip(param_table(shape)["layers"], names, strict=True)
    ]


def _adapter(param: Param, rank: int) -> dict[str, Param]:
    assert param.matrix is not None, "only matrices have adapters"
    inward, outward = param.matrix
    stack = tuple(range(inward[0]))
    bound = math.prod(param.shape[i] for i in inward) ** -0.5

    def uniform(key: jax.Array, size: Dims, dtype: jnp.dtype) -> jax.Array:
        return jax.random.uniform(key, size, dtype, -bound, bound)  # as PEFT does

    def part(left: Dims, right: Dims, init: Init) -> Param:
        dims = stack + left + right
        size = tuple(rank if i == RANK else param.shape[i] for i in dims)
        axes = tuple(None if i == RANK else param.axes[i] for i in dims)
        first, last = len(stack), len(stack + left)
        matrix = tuple(range(first, last)), tuple(range(last, len(dims)))
        return Param(size, axes, init, matrix)

    zeros = jax.nn.initializers.zeros
    return {"a": part(inward, (RANK,), uniform), "b": part((RANK,), outward, zeros)}


def new_adapters(key: jax.Array, shape: PolicyShape, lora: LoraShape) -> Params:
    """Returns the entries that add adapters to weights. New adapters do not change any output
    yet."""
    adapters = init_table(key, trained_table(shape, lora))
    return {"adapters": adapters, "adapter_scale": jnp.float32(lora.scale)}


def trained(params: Params) -> Params:
    """Returns the part of the weights that is trained."""
    return params.get("adapters", params)


def with_trained(params: Params, moved: Params) -> Params:
    """Returns `params`, with `moved` in place of `trained(params)`."""
    return params | ({"adapters": moved} if "adapters" in params else moved)


def without_adapters(params: Params) -> Params:
    """Returns the weights that the adapters lie beside, in the layout of `param_table`."""
    if "adapters" not in params:
        return params
    return {name: each for name, each in params.items() if name not in ENTRIES}


def entries(params: Params) -> Params:
    """Returns what adapters add to weights; {} without."""
    return {name: params[name] for name in ENTRIES if name in params}


def scaled_adapters(params: Params) -> list[Params]:
    """Returns each layer's adapters, with the scale in "a"."""
    if "adapter_scale" not in params:
        return params["adapters"]
    scale = params["adapter_scale"]
    return [
        {name: {"a": ab["a"] * scale, "b": ab["b"]} for name, ab in layer.items()}
        for layer in params["adapters"]
    ]


def adapted_layers(params: Params) -> list[Params]:
    """Returns the weights of each layer, those that have an adapter as `Adapted`; and beside them
    USES, if the weights have it."""
    if "adapters" not in params:
        return params["layers"]
    uses = {USES: params[USES]} if USES in params else {}
    return [
        layer | {name: Adapted(layer[name], **ab) for name, ab in adapters.items()} | uses
        for layer, adapters in zip(params["layers"], scaled_adapters(params), strict=True)
    ]


def merged(params: Params) -> Params:
    """Returns weights that compute the same without adapters, in the layout of `param_table`."""

    def merge(weight: jax.Array | Adapted) -> jax.Array:
        if not isinstance(weight, Adapted):
            return weight
        a, b = weight.a, weight.b
        stack, rank = a.shape[: a.ndim + b.ndim - 2 - len(weight.shape)], a.shape[-1]
        product = a.reshape(*stack, -1, rank) @ b.reshape(*stack, rank, -1)
        return weight.base + product.reshape(weight.shape)

    layers = [
        {name: merge(weight) for name, weight in layer.items()} for layer in adapted_layers(params)
    ]
    return without_adapters(params) | {"layers": layers}

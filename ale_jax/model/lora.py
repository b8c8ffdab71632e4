"""Low-rank adapters of linear maps (Hu et al. 2021): W + alpha/rank * A B with W frozen.

Weights with adapters are the policy's own tree with two more entries: "adapters", the only part
that is trained, and "adapter_scale". Code that does not handle adapters is given `merged` weights.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.model import LoraShape
from ale_jax.model.params import Dims, Init, Param, Params, init_table, param_table

RANK = -1  # stands for the adapter's rank among the dims of a map


def trained_table(shape: PolicyShape, lora: LoraShape) -> Params:
    """Returns the weights that are trained, as a tree of `Param`: the adapters of each layer, or
    all weights.

    The adapter of a map [in, out], or of a stack [E, in, out], is "a" [.., in, rank] and "b" [..,
    rank, out], sharded along the mesh as the map is. b starts at 0, so that adapters change nothing
    at first.
    """
    table = param_table(shape)
    if not lora.rank:
        return table

    def adapt(param: Param) -> dict[str, Param]:
        assert param.matrix is not None, "only matrices have adapters"
        inward, outward = param.matrix
        stack = tuple(range(inward[0]))
        bound = math.prod(param.shape[i] for i in inward) ** -0.5

        def uniform(key: jax.Array, size: Dims, dtype: jnp.dtype) -> jax.Array:
            return jax.random.uniform(key, size, dtype, -bound, bound)  # as PEFT does

        def part(left: Dims, right: Dims, init: Init) -> Param:
            dims = stack + left + right
            size = tuple(lora.rank if i == RANK else param.shape[i] for i in dims)
            axes = tuple(None if i == RANK else param.axes[i] for i in dims)
            first, last = len(stack), len(stack + left)
            matrix = tuple(range(first, last)), tuple(range(last, len(dims)))
            return Param(size, axes, init, matrix)

        zeros = jax.nn.initializers.zeros
        return {"a": part(inward, (RANK,), uniform), "b": part((RANK,), outward, zeros)}

    return [
        {n: adapt(p) for n, p in layer.items() if p.matrix and _targets(n) & set(lora.targets)}
        for layer in table["layers"]
    ]


def _targets(name: str) -> set[str]:
    """The targets that a weight is one of."""
    target = name.partition("_")[0]
    return {"k", "v"} if target == "kv" else {target}


def new_adapters(key: jax.Array, shape: PolicyShape, lora: LoraShape) -> Params:
    """Returns the entries that add adapters to weights. New adapters do not change any output
    yet."""
    adapters = init_table(key, trained_table(shape, lora))
    return {"adapters": adapters, "adapter_scale": jnp.float32(lora.alpha / lora.rank)}


def trained(params: Params) -> Params:
    """Returns the part of the weights that is trained."""
    return params.get("adapters", params)


def with_trained(params: Params, moved: Params) -> Params:
    """Returns `params`, with `moved` in place of `trained(params)`."""
    return params | {"adapters": moved} if "adapters" in params else moved


def adapted_layers(params: Params) -> list[tuple[Params, Params]]:
    """Returns each layer with its adapters, already scaled, for `merge_layer`."""
    layers = params["layers"]
    if "adapters" not in params:
        return [(layer, {}) for layer in layers]
    scale = params["adapter_scale"]
    scaled = [
        {name: {"a": ab["a"] * scale, "b": ab["b"]} for name, ab in adapters.items()}
        for adapters in params["adapters"]
    ]
    return list(zip(layers, scaled, strict=True))


def merge_layer(layer: Params, adapters: Params) -> Params:
    """Returns the layer's weights with its adapters added."""

    def add(name: str, weight: jax.Array) -> jax.Array:
        a, b = adapters[name]["a"], adapters[name]["b"]
        stack = a.shape[: a.ndim + b.ndim - 2 - weight.ndim]
        rank = a.shape[-1]
        product = a.reshape(*stack, -1, rank) @ b.reshape(*stack, rank, -1)
        return weight + product.reshape(weight.shape)

    return layer | {name: add(name, layer[name]) for name in adapters}


def merged(params: Params) -> Params:
    """Returns weights that compute the same without adapters, in the layout of `param_table`."""
    if "adapters" not in params:
        return params
    rest = {k: v for k, v in params.items() if k not in ("adapters", "adapter_scale")}
    return rest | {"layers": [merge_layer(*each) for each in adapted_layers(params)]}

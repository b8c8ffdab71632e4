"""How the forward pass is computed: precision, stored form of the weights, matrix products, and
what is kept for the backward pass."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.model import SAME, Compute
from ale_jax.model.lora import merged
from ale_jax.model.params import Param, Params, is_param, param_table
from ale_jax.model.sharding import RULES, SAMPLER_RULES, param_shardings

_FORMS = {"int8": (jnp.int8, 127.0), "fp8": (jnp.float8_e4m3fn, 448.0)}


@struct.dataclass
class Quantised:
    """value * scale. scale: float32, with size 1 along the dims that a product sums over."""

    value: jax.Array
    scale: jax.Array


Weight = jax.Array | Quantised


def weight(layer: Params, name: str, dtype: jnp.dtype) -> jax.Array:
    """Returns the layer's weight for a product in `dtype`. A quantised weight is dequantised and
    cast; any other is returned as it is."""
    stored = layer[name]
    return dequantise(stored).astype(dtype) if isinstance(stored, Quantised) else stored


def dequantise(stored: Quantised) -> jax.Array:
    return stored.value.astype(jnp.float32) * stored.scale


def in_step(params: Params, step: jax.Array) -> tuple[Params, jax.Array]:
    """`params` and `step` unchanged, for the body of a loop whose counter is `step`.

    Quantised weights are tied to the counter by an optimization barrier. Otherwise the compiler
    would dequantise all of them before the loop, which would undo the saving of memory.
    """
    if not any(isinstance(stored, Quantised) for stored in params["layers"][0].values()):
        return params, step
    return jax.lax.optimization_barrier((params, step))


def quantise_layers(params: Params, shape: PolicyShape, form: str) -> Params:
    """Returns every matrix of every layer as `Quantised`, from float32 weights without adapters.

    Symmetric: the largest magnitude of an output channel becomes 127 (int8) or 448 (fp8, e4m3).
    """

    def store(param: Param, array: jax.Array) -> Weight:
        return quantise(array, param.matrix[0], form) if param.matrix else array

    table = param_table(shape)["layers"]
    return params | {"layers": jax.tree.map(store, table, params["layers"], is_leaf=is_param)}


def quantise(array: jax.Array, input_dims: tuple[int, ...], form: str) -> Quantised:
    """Quantises symmetrically with one scale per output channel. input_dims: those that a product
    sums over. form: of _FORMS."""
    dtype, largest = _FORMS[form]
    array = array.astype(jnp.float32)
    scale = jnp.abs(array).max(axis=input_dims, keepdims=True) / largest
    scaled = array / jnp.where(scale == 0, 1.0, scale)
    rounded = jnp.round(scaled) if jnp.issubdtype(dtype, jnp.integer) else scaled
    return Quantised(rounded.astype(dtype), scale)


# What is kept of each layer for the backward pass: everything, products with dense weights, or
# only its input.
_KEPT = {
    "none": None,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "layers": jax.checkpoint_policies.nothing_saveable,
}
# Compiler options of sampler and learner. By default XLA omits roundings to bfloat16 where it fuses
# operations. It fuses differently in each program, so the two would disagree in log-probability by
# about 3e-3.
EXACT = {"xla_allow_excess_precision": False}
KEPT_EXACT = ("norm", "router")  # parts of the names of weights that are used in float32


def cast_layer(layer: Params, dtype: str) -> Params:
    """Returns a layer's weights, by name, in the type that products use; quantised ones are
    unchanged. Gradients flow back through the cast in the weights' own type."""

    def cast(name: str, weight: Weight) -> Weight:
        if isinstance(weight, Quantised):
            return weight
        exact = any(part in name for part in KEPT_EXACT)
        return weight.astype(jnp.float32 if exact else dtype)

    return {name: cast(name, weight) for name, weight in layer.items()}


def sampling_weights(
    params: Params,
    shape: PolicyShape,
    compute: Compute,
    mesh: Mesh | None = None,
    stored_as: str = SAME,
) -> Params:
    """Returns the weights that a sampler is given.

    Adapters are merged, and the type is that of the learner's products, so that both compute the
    same. Each weight is placed where a decode step needs it (SAMPLER_RULES), so that it is
    transferred once and not in every step. If `stored_as` says so, matrices are quantised, and then
    the two do not compute exactly the same. Returns the same arrays if there is nothing to do.
    """
    if not has_own_weights(compute, "adapters" in params, mesh, stored_as):
        return params
    return join_parts(
        [
            sampling_part(part, part_shape, compute.compute_dtype, mesh, stored_as)
            for part, part_shape in in_parts(params, shape)
        ]
    )


def in_parts(params: Params, shape: PolicyShape) -> list[tuple[Params, PolicyShape]]:
    """Splits weights into what is outside of the layers, and each layer with its adapters. Returns
    each part with the shape of a model that has this part alone.

    One program for all of them would hold all layers twice: in the places from which a decode step
    reads them, and on the way there. Layers of one form share a program.
    """
    no_layers = dataclasses.replace(shape, layers=())
    outside = {k: w for k, w in params.items() if k not in ("adapters", "adapter_scale")}
    parts = [(outside | {"layers": []}, no_layers)]
    for number, layer in enumerate(params["layers"]):
        part: Params = {"layers": [layer]}
        if "adapters" in params:
            part["adapters"] = [params["adapters"][number]]
            part["adapter_scale"] = params["adapter_scale"]
        parts.append((part, dataclasses.replace(shape, layers=(shape.layers[number],))))
    return parts


def join_parts(parts: Sequence[Params]) -> Params:
    """Joins what was made of the parts."""
    outside, *layers = parts
    return outside | {"layers": [layer for part in layers for layer in part["layers"]]}


def has_own_weights(
    compute: Compute, adapted: bool, mesh: AbstractMesh | Mesh | None, stored_as: str
) -> bool:
    """Returns whether a sampler needs other arrays than the learner's. adapted: there are
    adapters."""
    is_cut = mesh is not None and any(mesh.shape[axis] > 1 for axis in RULES["embed"])
    return adapted or compute.compute_dtype != "float32" or is_cut or stored_as != SAME


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4))
def sampling_part(
    params: Params, shape: PolicyShape, dtype: str, mesh: Mesh | None, stored_as: str
) -> Params:
    """Returns a part of `sampling_weights`; see `in_parts`."""
    params = served_weights(params, shape, dtype, stored_as)
    if mesh is None:
        return params
    places = sampler_shardings(params, shape, mesh)
    return jax.lax.with_sharding_constraint(params, places)


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


def served_weights(params: Params, shape: PolicyShape, dtype: str, stored_as: str) -> Params:
    """Returns the values that a sampler is given, without their sharding, of all weights or a
    part."""
    params = merged(params)
    if stored_as != SAME:
        params = quantise_layers(params, shape, stored_as)
    layers = [cast_layer(layer, dtype) for layer in params["layers"]]
    return cast_layer({k: w for k, w in params.items() if k != "layers"}, dtype) | {
        "layers": layers
    }


def recomputed(apply_layer: Callable, remat: str) -> Callable:
    """`apply_layer`, of whose results only what `remat` names is kept for the backward pass. Its
    first argument is the layer's kind."""
    policy = _KEPT[remat]
    if policy is None:
        return apply_layer
    return jax.checkpoint(apply_layer, policy=policy, static_argnums=(0,))


def scaled(x: jax.Array, factor: float) -> jax.Array:
    """Returns x times a factor in x's own type, in which transformers rounds it, too."""
    return x if factor == 1.0 else x * jnp.asarray(factor, x.dtype)


def soft_capped(x: jax.Array, cap: float) -> jax.Array:
    """Returns cap * tanh(x / cap), which lies between -cap and cap; x itself if the cap is 0."""
    return cap * jnp.tanh(x / cap) if cap else x


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def product(x: jax.Array, weight: jax.Array, dtype: jnp.dtype | None = None) -> jax.Array:
    """x [*E,...,D] times weight [*E,D,F] -> [*E,...,F], where E may be missing.

    dtype: of the result, if it is not that of the inputs. The weight's gradient is computed as x^T
    dy. JAX would derive (dy^T x)^T, which lets compilers compute everything that dy depends on a
    second time, transposed; on CPUs that costs half of a feed-forward layer. All three products
    take inputs of one type, for which accelerators are built.
    """
    return _forward(x, weight, dtype)[0]


def _forward(x: jax.Array, weight: jax.Array, dtype: jnp.dtype | None):
    experts = _experts(weight)
    dims = ((x.ndim - 1,), (len(experts),)), (experts, experts)
    return jax.lax.dot_general(x, weight, dims, preferred_element_type=dtype), (x, weight)


def _backward(dtype: jnp.dtype | None, kept, dy: jax.Array):
    x, weight = kept
    dy, experts = dy.astype(x.dtype), _experts(weight)
    rows = tuple(range(len(experts), x.ndim - 1))
    inner = (dy.ndim - 1,), (weight.ndim - 1,)
    d_x = jax.lax.dot_general(dy, weight, (inner, (experts, experts)))
    d_weight = jax.lax.dot_general(x, dy, ((rows, rows), (experts, experts)))
    return d_x, d_weight


def _experts(weight: jax.Array) -> tuple[int, ...]:
    return tuple(range(weight.ndim - 2))


product.defvjp(_forward, _backward)

"""How the forward pass is computed: precision, stored form of the weights, linear maps, and what is
kept for the backward pass."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from ale_jax.config.architecture import PolicyShape
from ale_jax.model.params import Param, Params, is_param, param_table

_FORMS = {"int8": (jnp.int8, 127.0), "fp8": (jnp.float8_e4m3fn, 448.0)}


@struct.dataclass
class Quantised:
    """value * scale, or the shardings of both. scale: float32, with size 1 along the dims that a
    product sums over."""

    value: Any
    scale: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape


Weight = jax.Array | Quantised


@struct.dataclass
class Adapted:
    """A weight with a low-rank adapter beside it. Its product with x is x W + (x A) B, for which
    W + A B is never computed.

    base: a Weight. a: [*stack, *in, rank], times the adapter's scale. b: [*stack, rank, *out]. Or
    the shardings of these.
    """

    base: Any
    a: Any
    b: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return self.base.shape


Map = Weight | Adapted
# Beside a layer's weights, if there are several adapters: which columns of x A each row uses, bool
# [B,1,r]; see `served_adapters`.
USES = "uses_B1r"


def weight(layer: Params, name: str, dtype: jnp.dtype) -> jax.Array | Adapted:
    """Returns the layer's weight for `times` in `dtype`. A quantised weight is dequantised and
    cast; any other is returned as it is."""
    return loaded(layer[name], dtype)


def loaded(stored: Map, dtype: jnp.dtype) -> jax.Array | Adapted:
    """Returns a stored weight as `weight` does."""
    if isinstance(stored, Adapted):
        return dataclasses.replace(stored, base=loaded(stored.base, dtype))
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
# Parts of the names of weights that are used in float32.
KEPT_EXACT = ("norm", "router", "decay", "layer_scale")


def cast_layer(layer: Params, dtype: str) -> Params:
    """Returns a layer's weights, by name, in the type that products use; quantised ones are
    unchanged. Gradients flow back through the cast in the weights' own type."""

    def cast(name: str, weight: Map) -> Map:
        if isinstance(weight, Quantised):
            return weight
        if isinstance(weight, Adapted):
            return Adapted(*(cast(name, each) for each in (weight.base, weight.a, weight.b)))
        exact = any(part in name for part in KEPT_EXACT)
        return weight.astype(jnp.float32 if exact else dtype)

    return {name: cast(name, weight) for name, weight in layer.items()}


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


def linear(layer: Params, name: str, x: jax.Array, inputs: int = 1) -> jax.Array:
    """Returns the product of x [..., *in] and a layer's linear map [*in, *out], [..., *out].

    inputs: how many dims `in` has. Layers apply their maps by this function, so that each may be
    stored in eight bits, or have an adapter.
    """
    found, rows = weight(layer, name, x.dtype), x.shape[: x.ndim - inputs]
    y = times(x.reshape(*rows, -1), _as_matrix(found, inputs), layer.get(USES))
    return y.reshape(*rows, *found.shape[inputs:])


def times(x: jax.Array, weight: jax.Array | Adapted, uses: jax.Array | None = None) -> jax.Array:
    """x [*E,...,D] times a map [*E,D,F], with its adapter if it has one -> [*E,...,F]. uses: see
    `used`."""
    if isinstance(weight, Adapted):
        return product(x, weight.base) + product(used(product(x, weight.a), uses), weight.b)
    return product(x, weight)


def used(inner: jax.Array, uses: jax.Array | None) -> jax.Array:
    """Returns x A [...,r], with zeros in the columns that `uses`, bool [...,r], excludes. None: all
    are used."""
    # Not a product with 0, which inf in the columns of another row's adapter would survive.
    return inner if uses is None else jnp.where(uses, inner, 0)


def _as_matrix(weight: jax.Array | Adapted, inputs: int) -> jax.Array | Adapted:
    if isinstance(weight, Adapted):
        base, a = _as_matrix(weight.base, inputs), _as_matrix(weight.a, inputs)
        return Adapted(base, a, _as_matrix(weight.b, 1))
    return weight.reshape(math.prod(weight.shape[:inputs]), -1)


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

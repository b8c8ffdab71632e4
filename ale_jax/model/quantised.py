"""Weights of the sampler in eight bits: a value per weight and a scale per output channel.

Only what a matrix product multiplies with is stored so. Norms, biases and the router are small and
decide much; embedding and head are looked up, or decide between neighbouring log-probabilities.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from ale_jax.model.params import Param, Params, is_param, param_table
from ale_jax.model.shape import PolicyShape

# How a sampler's weights may be stored, the type of the values, and what the largest one becomes.
SAME = "same"
_FORMS = {"int8": (jnp.int8, 127.0), "fp8": (jnp.float8_e4m3fn, 448.0)}
STORED_AS = (SAME, *_FORMS)


@struct.dataclass
class Quantised:
    """value * scale. scale: float32, 1 wide along the dims that a product sums over."""

    value: jax.Array
    scale: jax.Array


Weight = jax.Array | Quantised


def weight(layer: Params, name: str, dtype: jnp.dtype) -> jax.Array:
    """The layer's weight as a product in `dtype` takes it; one that is not quantised as it is."""
    stored = layer[name]
    return dequantise(stored).astype(dtype) if isinstance(stored, Quantised) else stored


def dequantise(stored: Quantised) -> jax.Array:
    return stored.value.astype(jnp.float32) * stored.scale


def in_step(params: Params, step: jax.Array) -> tuple[Params, jax.Array]:
    """The same weights and the same counter, within a loop that goes on by them. Quantised weights
    are tied to the counter: else the compiler dequantises all of them before the loop, and holds
    what they were to save."""
    if not any(isinstance(stored, Quantised) for stored in params["layers"][0].values()):
        return params, step
    return jax.lax.optimization_barrier((params, step))


def quantise_layers(params: Params, shape: PolicyShape, form: str) -> Params:
    """Every matrix of every layer as `Quantised`, from float32 weights without adapters.

    Symmetric: the largest of an output channel becomes 127 (int8) or 448 (fp8, e4m3).
    """

    def store(param: Param, array: jax.Array) -> Weight:
        return quantise(array, param.matrix[0], form) if param.matrix else array

    table = param_table(shape)["layers"]
    return params | {"layers": jax.tree.map(store, table, params["layers"], is_leaf=is_param)}


def quantise(array: jax.Array, input_dims: tuple[int, ...], form: str) -> Quantised:
    dtype, largest = _FORMS[form]
    array = array.astype(jnp.float32)
    scale = jnp.abs(array).max(axis=input_dims, keepdims=True) / largest
    scaled = array / jnp.where(scale == 0, 1.0, scale)
    rounded = jnp.round(scaled) if jnp.issubdtype(dtype, jnp.integer) else scaled
    return Quantised(rounded.astype(dtype), scale)

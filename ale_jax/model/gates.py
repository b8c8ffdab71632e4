"""What a feed-forward makes of its inner products, of which it has two if it is gated."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from ale_jax.config.architecture import Activation, ClampedSwiglu, Gate

_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "relu2": lambda x: jnp.square(jax.nn.relu(x)),
}


def activated(x: jax.Array, kind: Activation) -> jax.Array:
    return _ACTIVATIONS[kind](x)


def gated(gate: jax.Array, up: jax.Array, kind: Gate) -> jax.Array:
    """Returns the input of the last product, from the products of gate and up."""
    if not isinstance(kind, ClampedSwiglu):
        return activated(gate, kind) * up
    gate, up = jnp.minimum(gate, kind.limit), jnp.clip(up, -kind.limit, kind.limit)
    return (up + 1) * gate * jax.nn.sigmoid(gate * kind.alpha)

"""Products of activations and weights, whose gradients are written out."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def product(x: jax.Array, weight: jax.Array, dtype: jnp.dtype | None = None) -> jax.Array:
    """x [*E,...,D] times weight [*E,D,F] -> [*E,...,F], where E may be missing.

    dtype: of the result, if it is not that of the inputs. The weight's gradient is x^T dy. What JAX
    would derive, (dy^T x)^T, lets compilers compute all that dy comes from a second time,
    transposed: on CPUs that costs half of a feed-forward layer. And all three products take inputs
    of one type, for which accelerators are built.
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

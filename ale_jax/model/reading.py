"""Places of packed rows, where alone something is computed that nobody reads elsewhere.

read_BR: tokens of each row, ascending, each once, none of them a row's first, as
`data.reading.read_tokens` makes it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ale_jax.model.attention import context_devices


def read_here(read_BR: jax.Array | None) -> jax.Array | None:
    """Returns read_BR, or None, for all tokens, where the mesh divides the tokens of a row: those
    that are read may all be on one of the devices."""
    return None if context_devices() > 1 else read_BR


def before(x_BT: jax.Array, read_BR: jax.Array) -> jax.Array:
    """Returns the x of the token before each that is read, [B,R,...]."""
    return _taken(x_BT, read_BR - 1)


def following(x_BT: jax.Array, read_BR: jax.Array | None) -> jax.Array:
    """Returns the x of each token that is read, [B,R,...]: of that behind the places of `before`.
    For all tokens that of the next one, [B,T,...]; the row's first one stands last."""
    return jnp.roll(x_BT, -1, axis=1) if read_BR is None else _taken(x_BT, read_BR)


def put_behind(x_BR: jax.Array, read_BR: jax.Array | None, T: int) -> jax.Array:
    """Returns each x at its token, [B,T,...], and 0 at others: undoes `following`."""
    if read_BR is None:
        return jnp.roll(x_BR, 1, axis=1)

    def of_row(x_R: jax.Array, read_R: jax.Array) -> jax.Array:
        zeros_T = jnp.zeros((T, *x_R.shape[1:]), x_R.dtype)
        return zeros_T.at[read_R].set(x_R, indices_are_sorted=True, unique_indices=True)

    return jax.vmap(of_row)(x_BR, read_BR)


def _taken(x_BT: jax.Array, place_BR: jax.Array) -> jax.Array:
    index_BR = place_BR.reshape(*place_BR.shape, *[1] * (x_BT.ndim - 2))
    return jnp.take_along_axis(x_BT, index_BR, axis=1, mode="clip")

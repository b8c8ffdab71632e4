"""Arithmetic on chunks: sums and means of token values per chunk, chunk values back onto tokens.

A chunk is all that the policy writes between two interactions with its environment. `chunk_BT`
holds the id, within its row, of the chunk that wrote each token: 0..C-1, and -1 for tokens that no
chunk wrote (observations, padding). C is static; an id of C or more would be lost, which the packer
(`ale_jax.data.packing`) rules out.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def chunk_sum(x_BT: jax.Array, chunk_BT: jax.Array, num_chunks: int) -> jax.Array:
    """Sum of each chunk's tokens, x_BC with C = num_chunks. 0 where a chunk has no tokens.

    What lies outside every chunk has no influence, nan included, on the value or the gradient.
    """
    assert x_BT.shape == chunk_BT.shape, (x_BT.shape, chunk_BT.shape)
    # A masked reduction fuses on every backend. A scatter-add would save arithmetic, but GPUs add
    # in no fixed order, and a resumed run has to equal an unbroken one bit for bit.
    member_BTC = chunk_BT[:, :, None] == jnp.arange(num_chunks)[None, None, :]
    return jnp.where(member_BTC, x_BT[:, :, None], jnp.zeros((), x_BT.dtype)).sum(axis=1)


def chunk_count(chunk_BT: jax.Array, num_chunks: int) -> jax.Array:
    """Number of tokens in each chunk, float32 [B, C]."""
    return chunk_sum(jnp.ones(chunk_BT.shape, jnp.float32), chunk_BT, num_chunks)


def chunk_mean(x_BT: jax.Array, chunk_BT: jax.Array, num_chunks: int) -> jax.Array:
    """Mean over each chunk's tokens, [B, C]. 0 where a chunk has no tokens."""
    count_BC = chunk_count(chunk_BT, num_chunks)
    return chunk_sum(x_BT, chunk_BT, num_chunks) / jnp.maximum(count_BC, 1.0)


def chunk_to_token(x_BC: jax.Array, chunk_BT: jax.Array) -> jax.Array:
    """Gives every token its chunk's value, [B, T]. 0 outside every chunk."""
    x_BT = jnp.take_along_axis(x_BC, jnp.maximum(chunk_BT, 0), axis=1)
    return jnp.where(chunk_BT >= 0, x_BT, jnp.zeros((), x_BC.dtype))

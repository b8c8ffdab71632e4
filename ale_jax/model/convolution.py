"""The causal convolution over the last tokens of a run, each channel with weights of its own. A run
is the tokens of one conversation; packed rows have several of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def packed_runs(segment_BT: jax.Array) -> jax.Array:
    """Returns the number of each token's run in packed rows, from 1, so that none has a history."""
    begins_BT = jnp.diff(segment_BT, axis=1, prepend=segment_BT[:, :1] - 1) != 0
    return jnp.cumsum(begins_BT, axis=1, dtype=jnp.int32)


def causal_convolution(
    x_BT: jax.Array, weight_i: jax.Array, history_Bi: jax.Array, run_BT: jax.Array
) -> jax.Array:
    """Returns the sum of the last i tokens of the same run, each channel with weights of its own,
    the last one for the token itself.

    x_BT: with one or more dims of channels. weight_i: these dims, then i. history_Bi: the i - 1
    tokens before the first one, with the same dims; run 0 continues them.
    """
    T, width = x_BT.shape[1], weight_i.shape[-1]
    all_BM = jnp.concatenate([history_Bi, x_BT], axis=1)
    run_BM = jnp.pad(run_BT, ((0, 0), (width - 1, 0)))
    out_BT = jnp.zeros_like(x_BT)
    for i in range(width):
        same_BT = run_BM[:, i : i + T] == run_BT
        seen_BT = jnp.where(_with_channels(same_BT, x_BT), all_BM[:, i : i + T], 0.0)
        out_BT = out_BT + seen_BT * weight_i[..., i][None, None]
    return out_BT


def last_inputs(x_BT: jax.Array, history_Bi: jax.Array, count_B: jax.Array) -> jax.Array:
    """Returns the history after the first `count_B` tokens of each row."""
    all_BM = jnp.concatenate([history_Bi, x_BT], axis=1)
    place_Bi = count_B[:, None] + jnp.arange(history_Bi.shape[1])[None, :]
    return jnp.take_along_axis(all_BM, _with_channels(place_Bi, x_BT), axis=1)


def _with_channels(of_tokens_BT: jax.Array, x_BT: jax.Array) -> jax.Array:
    return of_tokens_BT.reshape(*of_tokens_BT.shape, *[1] * (x_BT.ndim - 2))

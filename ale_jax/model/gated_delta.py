"""The gated delta rule (Yang et al., arXiv 2412.06464): a memory of fixed size, which forgets by a
gate and stores a value under a key by correcting what it holds there.

Each head has a state S, [H,h]. With the decay a, the strength b, key k, value v and query q of a
token,

    S' = a S,    u = b (v - k S'),    S = S' + k^T u,    out = q S.

A chunk of tokens is computed at once: the u of its tokens solve one triangular system, and all else
are matrix products. A scan over the chunks carries the state. A run of tokens that are one
conversation's begins with an empty state; packed rows have several of them.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from ale_jax.model.sharding import row_axes

CHUNK = 64  # tokens
# An accelerator would otherwise round the inputs of float32 products to fewer bits.
_einsum = partial(jnp.einsum, precision="highest")


class DeltaTokens(NamedTuple):
    """What the heads are given of each token, float32. decay: the logarithm of a, at most 0. N is a
    multiple of G: consecutive value heads share a key head."""

    q_BTGH: jax.Array
    k_BTGH: jax.Array
    v_BTNh: jax.Array
    decay_BTN: jax.Array
    beta_BTN: jax.Array


def delta_rule(
    tokens: DeltaTokens, run_BT: jax.Array, state_BNHh: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the outputs [B,T,N,h] and the state after the last token.

    run_BT: the number of the token's run, ascending. state_BNHh: what run 0 begins with; the
    others begin with zeros. A token with decay 0 and strength 0 leaves the state as it is.
    """
    if tokens.k_BTGH.shape[1] == 1:
        return _one_token(tokens, run_BT, state_BNHh)
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1 or mesh.manual_axes:
        return _by_chunks(tokens, run_BT, state_BNHh)
    # The compiler cannot divide the triangular system.
    rows = row_axes(len(run_BT), mesh)
    heads, state = PartitionSpec(rows, None, "tensor"), PartitionSpec(rows, "tensor")
    return jax.shard_map(
        _by_chunks,
        in_specs=(heads, PartitionSpec(rows), state),
        out_specs=(heads, state),
        check_vma=False,
    )(tokens, run_BT, state_BNHh)


def _one_token(
    tokens: DeltaTokens, run_B1: jax.Array, state_BNHh: jax.Array
) -> tuple[jax.Array, jax.Array]:
    q_BNH, k_BNH, v_BNh, decay_BN, beta_BN = (x[:, 0] for x in _by_value_head(tokens))
    kept_BN = jnp.where(run_B1 == 0, jnp.exp(decay_BN), 0.0)
    state_BNHh = kept_BN[..., None, None] * state_BNHh
    u_BNh = beta_BN[..., None] * (v_BNh - _einsum("bnk,bnkv->bnv", k_BNH, state_BNHh))
    state_BNHh = state_BNHh + k_BNH[..., None] * u_BNh[..., None, :]
    return _einsum("bnk,bnkv->bnv", q_BNH, state_BNHh)[:, None], state_BNHh


def _by_chunks(
    tokens: DeltaTokens, run_BT: jax.Array, state_BNHh: jax.Array
) -> tuple[jax.Array, jax.Array]:
    B, T, N, _ = tokens.v_BTNh.shape
    chunks = -(-T // CHUNK)
    behind = (0, chunks * CHUNK - T)  # zeros, which change no state

    def cut(x_BT: jax.Array, mode: str = "constant") -> jax.Array:
        padding = [(0, 0), behind] + [(0, 0)] * (x_BT.ndim - 2)
        x_BZt = jnp.pad(x_BT, padding, mode=mode).reshape(B, chunks, CHUNK, *x_BT.shape[2:])
        return jnp.moveaxis(x_BZt, 1, 0)

    # What a chunk computes is computed again for its gradient, so that only states are kept.
    step = jax.checkpoint(_one_chunk)
    first = state_BNHh, jnp.zeros((B,), run_BT.dtype)
    chunked = jax.tree.map(cut, tokens), cut(run_BT, "edge")
    (state_BNHh, _), out_ZBtNh = jax.lax.scan(step, first, chunked)
    return jnp.moveaxis(out_ZBtNh, 0, 1).reshape(B, -1, N, out_ZBtNh.shape[-1])[:, :T], state_BNHh


def _one_chunk(carry, chunk):
    """carry: the state, and the run that it belongs to."""
    (state_BNHh, run_B), (tokens, run_Bt) = carry, chunk
    q_BNtH, k_BNtH, v_BNth, decay_BNt, beta_BNt = (
        jnp.moveaxis(x, 2, 1) for x in _by_value_head(tokens)
    )
    total_BNt = jnp.cumsum(decay_BNt, axis=-1)
    t = jnp.arange(CHUNK)
    same_Btt = (run_Bt[:, :, None] == run_Bt[:, None, :]) & (t[:, None] >= t[None, :])[None]
    # Sums of what lies between two tokens, as differences of long sums lose digits.
    later_tt = (t[:, None] > t[None, :])[None, None]
    between_BNtt = jnp.cumsum(jnp.where(later_tt, decay_BNt[..., None], 0.0), axis=-2)
    within_BNtt = jnp.exp(jnp.where(same_Btt[:, None], between_BNtt, -jnp.inf))
    before_BNt = jnp.where(run_Bt == run_B[:, None], 1.0, 0.0)[:, None] * jnp.exp(total_BNt)

    key_BNtt = within_BNtt * _einsum("bnik,bnjk->bnij", k_BNtH, k_BNtH)
    held_BNth = before_BNt[..., None] * _einsum("bnik,bnkv->bniv", k_BNtH, state_BNHh)
    u_BNth = jax.lax.linalg.triangular_solve(
        beta_BNt[..., None] * key_BNtt,  # the part below the diagonal, which counts as ones
        beta_BNt[..., None] * (v_BNth - held_BNth),
        left_side=True,
        lower=True,
        unit_diagonal=True,
    )
    query_BNtt = within_BNtt * _einsum("bnik,bnjk->bnij", q_BNtH, k_BNtH)
    out_BNth = before_BNt[..., None] * _einsum("bnik,bnkv->bniv", q_BNtH, state_BNHh)
    out_BNth = out_BNth + _einsum("bnij,bnjv->bniv", query_BNtt, u_BNth)

    stored_BNHh = _einsum("bnj,bnjk,bnjv->bnkv", within_BNtt[:, :, -1], k_BNtH, u_BNth)
    state_BNHh = before_BNt[:, :, -1, None, None] * state_BNHh + stored_BNHh
    return (state_BNHh, run_Bt[:, -1]), jnp.moveaxis(out_BNth, 1, 2)


def _by_value_head(tokens: DeltaTokens) -> list[jax.Array]:
    """The same, with the queries and keys of each value head."""
    q_BTGH, k_BTGH, v_BTNh, *gates = tokens
    shared = v_BTNh.shape[2] // k_BTGH.shape[2]
    q_BTNH, k_BTNH = (jnp.repeat(x, shared, axis=2) for x in (q_BTGH, k_BTGH))
    return [q_BTNH, k_BTNH, v_BTNh, *gates]

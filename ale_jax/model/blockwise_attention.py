"""Causal attention of packed rows block by block: nothing of the size T x T is ever held.

Blocks of which no query sees a key are skipped, so that a causal row costs half of a full one, and
short segments packed into a long row cost little. Online softmax: Milakov and Gimelshein 2018;
the gradient out of saved log-sum-exps: FlashAttention-2, Dao 2023, algorithms 1 and 2.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

BLOCK = 512  # tokens, at most
_MASKED = -1e30  # finite: a query that sees nothing must give numbers


class Places(NamedTuple):
    """Where tokens stand, [B,T]: a token sees those of its segment at its position or before."""

    segment_BT: jax.Array
    position_BT: jax.Array


@jax.custom_vjp
def blockwise_attention(
    q_BTNH: jax.Array, k_BSGH: jax.Array, v_BSGH: jax.Array, queries: Places, keys: Places
) -> jax.Array:
    """Grouped-query attention [B,T,N,H] of T queries over S keys, in any order of either."""
    return _forward(q_BTNH, k_BSGH, v_BSGH, queries, keys)[0]


def _forward(q_BTNH, k_BSGH, v_BSGH, queries: Places, keys: Places):
    blocks = _blocks(q_BTNH, k_BSGH, v_BSGH, queries, keys)

    def attend_block(_, query):
        q_BGXH, query_places = query

        def update(state, key):
            max_BGX, sum_BGX, out_BGXH = state
            k_BGsH, v_BGsH, key_places = key
            score = _scores(q_BGXH, k_BGsH, query_places, key_places)
            new_max = jnp.maximum(max_BGX, score.max(axis=-1))
            weight, shrink = jnp.exp(score - new_max[..., None]), jnp.exp(max_BGX - new_max)
            more = jnp.einsum("bgxs,bgsh->bgxh", weight.astype(v_BGsH.dtype), v_BGsH)
            out_BGXH = out_BGXH * shrink[..., None] + more.astype(jnp.float32)
            return new_max, sum_BGX * shrink + weight.sum(axis=-1), out_BGXH

        start = (
            jnp.full(q_BGXH.shape[:-1], _MASKED, jnp.float32),
            jnp.zeros(q_BGXH.shape[:-1], jnp.float32),
            jnp.zeros(q_BGXH.shape, jnp.float32),
        )

        def step(state, key):
            is_seen = _mask(query_places, key[2]).any()
            return jax.lax.cond(is_seen, update, lambda state, _: state, state, key), None

        (max_BGX, sum_BGX, out_BGXH), _ = jax.lax.scan(step, start, blocks.keys)
        sum_BGX = jnp.maximum(sum_BGX, 1e-30)
        out_BGXH = (out_BGXH / sum_BGX[..., None]).astype(q_BGXH.dtype)
        return None, (out_BGXH, max_BGX + jnp.log(sum_BGX))

    _, (out_nBGXH, lse_nBGX) = jax.lax.scan(attend_block, None, blocks.queries)
    out_BTNH = _join(out_nBGXH, q_BTNH.shape)
    return out_BTNH, (q_BTNH, k_BSGH, v_BSGH, queries, keys, out_nBGXH, lse_nBGX)


def _backward(kept, d_out_BTNH):
    q_BTNH, k_BSGH, v_BSGH, queries, keys, out_nBGXH, lse_nBGX = kept
    blocks = _blocks(q_BTNH, k_BSGH, v_BSGH, queries, keys)
    d_out_nBGXH = _split_heads(d_out_BTNH, k_BSGH.shape[2], out_nBGXH.shape[0])
    scale = q_BTNH.shape[-1] ** -0.5

    def block_gradient(total, query):
        (q_BGXH, query_places), out_BGXH, lse_BGX, d_out_BGXH = query
        product = d_out_BGXH.astype(jnp.float32) * out_BGXH.astype(jnp.float32)
        delta_BGX = product.sum(axis=-1)

        def update(dq_BGXH, key):
            (k_BGsH, v_BGsH, key_places), dk_BGsH, dv_BGsH = key
            score = _scores(q_BGXH, k_BGsH, query_places, key_places)
            weight = jnp.exp(score - lse_BGX[..., None])
            d_weight = jnp.einsum("bgxh,bgsh->bgxs", d_out_BGXH, v_BGsH).astype(jnp.float32)
            d_score = (weight * (d_weight - delta_BGX[..., None]) * scale).astype(q_BGXH.dtype)
            dq = jnp.einsum("bgxs,bgsh->bgxh", d_score, k_BGsH).astype(jnp.float32)
            dk = jnp.einsum("bgxs,bgxh->bgsh", d_score, q_BGXH).astype(jnp.float32)
            weight = weight.astype(d_out_BGXH.dtype)
            dv = jnp.einsum("bgxs,bgxh->bgsh", weight, d_out_BGXH).astype(jnp.float32)
            return dq_BGXH + dq, (dk_BGsH + dk, dv_BGsH + dv)

        def skip(dq_BGXH, key):
            return dq_BGXH, key[1:]

        def step(dq_BGXH, key):
            is_seen = _mask(query_places, key[0][2]).any()
            return jax.lax.cond(is_seen, update, skip, dq_BGXH, key)

        dq_BGXH = jnp.zeros(q_BGXH.shape, jnp.float32)
        dq_BGXH, total = jax.lax.scan(step, dq_BGXH, (blocks.keys, *total))
        return total, dq_BGXH

    zeros = jnp.zeros(blocks.keys[0].shape, jnp.float32)
    rows = (blocks.queries, out_nBGXH, lse_nBGX, d_out_nBGXH)
    (dk, dv), dq = jax.lax.scan(block_gradient, (zeros, zeros), rows)
    dq, dk, dv = (
        _join(d, x.shape).astype(x.dtype) for d, x in ((dq, q_BTNH), (dk, k_BSGH), (dv, v_BSGH))
    )
    return dq, dk, dv, None, None


blockwise_attention.defvjp(_forward, _backward)


class _Blocks(NamedTuple):
    """queries: [n][B,G,X,H] and their places, X = block * N/G, the heads that share keys together.
    keys: keys and values [m][B,G,s,H] and their places."""

    queries: tuple[jax.Array, Places]
    keys: tuple[jax.Array, jax.Array, Places]


def _blocks(q_BTNH, k_BSGH, v_BSGH, queries: Places, keys: Places) -> _Blocks:
    T, S, G = q_BTNH.shape[1], k_BSGH.shape[1], k_BSGH.shape[2]
    n, m = T // _block_size(T), S // _block_size(S)
    q_nBGXH = _split_heads(q_BTNH, G, n)
    k_mBGsH, v_mBGsH = _split_heads(k_BSGH, G, m), _split_heads(v_BSGH, G, m)
    return _Blocks((q_nBGXH, _split(queries, n)), (k_mBGsH, v_mBGsH, _split(keys, m)))


def _block_size(tokens: int) -> int:
    """The largest divisor of `tokens` that is at most BLOCK."""
    return next(size for size in range(min(BLOCK, tokens), 0, -1) if tokens % size == 0)


def _split_heads(x_BTNH: jax.Array, G: int, n: int) -> jax.Array:
    B, T, N, H = x_BTNH.shape
    x = x_BTNH.reshape(B, n, T // n, G, N // G, H)
    return x.transpose(1, 0, 3, 2, 4, 5).reshape(n, B, G, -1, H)


def _join(x_nBGXH: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The inverse of `_split_heads`."""
    (n, _, G, _, _), (B, T, N, H) = x_nBGXH.shape, shape
    x = x_nBGXH.reshape(n, B, G, T // n, N // G, H)
    return x.transpose(1, 0, 3, 2, 4, 5).reshape(shape)


def _split(places: Places, n: int) -> Places:
    return Places(*(p.reshape(p.shape[0], n, -1).swapaxes(0, 1) for p in places))


def _mask(queries: Places, keys: Places) -> jax.Array:
    """[B,t,s]: whether a query sees a key."""
    same = queries.segment_BT[:, :, None] == keys.segment_BT[:, None, :]
    return same & (keys.position_BT[:, None, :] <= queries.position_BT[:, :, None])


def _scores(q_BGXH: jax.Array, k_BGsH: jax.Array, queries: Places, keys: Places) -> jax.Array:
    mask_Bts = _mask(queries, keys)
    mask_BXs = jnp.repeat(mask_Bts, q_BGXH.shape[2] // mask_Bts.shape[1], axis=1)
    score = jnp.einsum("bgxh,bgsh->bgxs", q_BGXH, k_BGsH).astype(jnp.float32)
    return jnp.where(mask_BXs[:, None], score * q_BGXH.shape[-1] ** -0.5, _MASKED)

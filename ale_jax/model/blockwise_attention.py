"""Causal attention over packed rows, block by block: nothing of size T x T is ever held in memory.

Blocks in which no query sees a key are skipped. A causal row therefore costs half as much as a full
one, and short segments packed into a long row cost little. Online softmax: Milakov and Gimelshein
2018. Gradient from saved log-sum-exps: FlashAttention-2, Dao 2023, algorithms 1 and 2.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ale_jax.config.architecture import Attention
from ale_jax.model.compute import soft_capped

BLOCK = 512  # tokens, at most
_MASKED = -1e30  # finite, so that a query that sees no key does not give NaN
# Of inputs in bfloat16, a sum that came out in bfloat16 would already be rounded.
_product = partial(jnp.einsum, preferred_element_type=jnp.float32)


class Places(NamedTuple):
    """Segment and position of each token, [B,T]. A token sees tokens of its segment alone, at its
    own position and before."""

    segment_BT: jax.Array
    position_BT: jax.Array


def in_reach(query_BT: jax.Array, key_BM: jax.Array, window: int) -> jax.Array:
    """Returns whether a query at one position sees a key at another of its segment, [B,T,M].
    window: as in `Attention`."""
    behind_BTM = query_BT[:, :, None] - key_BM[:, None, :]
    is_past_BTM = behind_BTM >= 0
    return is_past_BTM & (behind_BTM < window) if window else is_past_BTM


def scores(product: jax.Array, kind: Attention) -> jax.Array:
    """Returns the scores of products of queries and keys, before any mask."""
    return soft_capped(product * kind.scale, kind.cap)


def by_query(sink_N: jax.Array, G: int, T: int) -> jax.Array:
    """Returns the sink of each query that shares a key head, float32 [1,G,x]: of T tokens, with the
    heads of each side by side."""
    return jnp.tile(sink_N.astype(jnp.float32).reshape(1, G, -1), (1, 1, T))


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def blockwise_attention(
    q_BTNH: jax.Array,
    k_BMGH: jax.Array,
    v_BMGH: jax.Array,
    queries: Places,
    keys: Places,
    kind: Attention,
    sink_N: jax.Array | None = None,
) -> jax.Array:
    """Computes the grouped-query attention of T queries over M keys, [B,T,N,H]. Both may be in any
    order. sink_N: of a kind that has sinks."""
    return _forward(q_BTNH, k_BMGH, v_BMGH, queries, keys, kind, sink_N)[0]


def _forward(q_BTNH, k_BMGH, v_BMGH, queries: Places, keys: Places, kind: Attention, sink_N):
    blocks = _blocks(q_BTNH, k_BMGH, v_BMGH, queries, keys)

    def attend_block(_, query):
        q_BGxH, query_places = query

        def update(state, key):
            max_BGx, sum_BGx, out_BGxH = state
            k_BGmH, v_BGmH, key_places = key
            score = _scores(q_BGxH, k_BGmH, query_places, key_places, kind)
            new_max = jnp.maximum(max_BGx, score.max(axis=-1))
            weight, shrink = jnp.exp(score - new_max[..., None]), jnp.exp(max_BGx - new_max)
            more = _product("bgxm,bgmh->bgxh", weight.astype(v_BGmH.dtype), v_BGmH)
            out_BGxH = out_BGxH * shrink[..., None] + more
            return new_max, sum_BGx * shrink + weight.sum(axis=-1), out_BGxH

        start = (
            jnp.full(q_BGxH.shape[:-1], _MASKED, jnp.float32),
            jnp.zeros(q_BGxH.shape[:-1], jnp.float32),
            jnp.zeros(q_BGxH.shape, jnp.float32),
        )
        if sink_N is not None:  # as a key that was seen first, with a value of 0
            sink_BGx = jnp.broadcast_to(_sinks(sink_N, q_BGxH), q_BGxH.shape[:-1])
            start = sink_BGx, jnp.ones_like(sink_BGx), start[2]

        def step(state, key):
            is_seen = _mask(query_places, key[2], kind).any()
            return jax.lax.cond(is_seen, update, lambda state, _: state, state, key), None

        (max_BGx, sum_BGx, out_BGxH), _ = jax.lax.scan(step, start, blocks.keys)
        sum_BGx = jnp.maximum(sum_BGx, 1e-30)
        out_BGxH = (out_BGxH / sum_BGx[..., None]).astype(q_BGxH.dtype)
        return None, (out_BGxH, max_BGx + jnp.log(sum_BGx))

    _, (out_ZBGxH, lse_ZBGx) = jax.lax.scan(attend_block, None, blocks.queries)
    out_BTNH = _join(out_ZBGxH, q_BTNH.shape)
    return out_BTNH, (q_BTNH, k_BMGH, v_BMGH, queries, keys, sink_N, out_ZBGxH, lse_ZBGx)


def _backward(kind: Attention, kept, d_out_BTNH):
    q_BTNH, k_BMGH, v_BMGH, queries, keys, sink_N, out_ZBGxH, lse_ZBGx = kept
    blocks = _blocks(q_BTNH, k_BMGH, v_BMGH, queries, keys)
    d_out_ZBGxH = _split_heads(d_out_BTNH, k_BMGH.shape[2], out_ZBGxH.shape[0])

    def block_gradient(total, query):
        (q_BGxH, query_places), out_BGxH, lse_BGx, d_out_BGxH = query
        product = d_out_BGxH.astype(jnp.float32) * out_BGxH.astype(jnp.float32)
        delta_BGx = product.sum(axis=-1)

        def update(dq_BGxH, key):
            (k_BGmH, v_BGmH, key_places), dk_BGmH, dv_BGmH = key
            score = _scores(q_BGxH, k_BGmH, query_places, key_places, kind)
            weight = jnp.exp(score - lse_BGx[..., None])
            d_weight = _product("bgxh,bgmh->bgxm", d_out_BGxH, v_BGmH)
            d_score = weight * (d_weight - delta_BGx[..., None]) * kind.scale
            if kind.cap:
                capped = jnp.maximum(score, -kind.cap)  # the square of a masked one overflows
                d_score *= 1 - (capped / kind.cap) ** 2
            d_score = d_score.astype(q_BGxH.dtype)
            dq = _product("bgxm,bgmh->bgxh", d_score, k_BGmH)
            dk = _product("bgxm,bgxh->bgmh", d_score, q_BGxH)
            weight = weight.astype(d_out_BGxH.dtype)
            dv = _product("bgxm,bgxh->bgmh", weight, d_out_BGxH)
            return dq_BGxH + dq, (dk_BGmH + dk, dv_BGmH + dv)

        def skip(dq_BGxH, key):
            return dq_BGxH, key[1:]

        def step(dq_BGxH, key):
            is_seen = _mask(query_places, key[0][2], kind).any()
            return jax.lax.cond(is_seen, update, skip, dq_BGxH, key)

        dq_BGxH = jnp.zeros(q_BGxH.shape, jnp.float32)
        dq_BGxH, total = jax.lax.scan(step, dq_BGxH, (blocks.keys, *total))
        return total, (dq_BGxH, _sink_gradient(sink_N, q_BGxH, lse_BGx, delta_BGx))

    zeros = jnp.zeros(blocks.keys[0].shape, jnp.float32)
    rows = (blocks.queries, out_ZBGxH, lse_ZBGx, d_out_ZBGxH)
    (dk, dv), (dq, d_sink_ZN) = jax.lax.scan(block_gradient, (zeros, zeros), rows)
    dq, dk, dv = (
        _join(d, x.shape).astype(x.dtype) for d, x in ((dq, q_BTNH), (dk, k_BMGH), (dv, v_BMGH))
    )
    d_sink_N = None if sink_N is None else d_sink_ZN.sum(axis=0).astype(sink_N.dtype)
    return dq, dk, dv, None, None, d_sink_N


blockwise_attention.defvjp(_forward, _backward)


def _sinks(sink_N: jax.Array, q_BGxH: jax.Array) -> jax.Array:
    """Of a block of queries, [1,G,x]."""
    G = q_BGxH.shape[1]
    return by_query(sink_N, G, q_BGxH.shape[2] * G // len(sink_N))


def _sink_gradient(sink_N, q_BGxH, lse_BGx, delta_BGx) -> jax.Array | None:
    """Of a block of queries, [N]: a sink takes its share from what the keys give."""
    if sink_N is None:
        return None
    share_BGx = jnp.exp(_sinks(sink_N, q_BGxH) - lse_BGx)
    by_head = (-share_BGx * delta_BGx).reshape(
        *lse_BGx.shape[:2], -1, len(sink_N) // lse_BGx.shape[1]
    )
    return by_head.sum(axis=(0, 2)).reshape(-1)


class _Blocks(NamedTuple):
    """queries: [Z,B,G,x,H] and their places; heads that share keys are adjacent.
    keys: keys and values [Z,B,G,m,H] and their places, in blocks of their own."""

    queries: tuple[jax.Array, Places]
    keys: tuple[jax.Array, jax.Array, Places]


def _blocks(q_BTNH, k_BMGH, v_BMGH, queries: Places, keys: Places) -> _Blocks:
    (T, M), G = (q_BTNH.shape[1], k_BMGH.shape[1]), k_BMGH.shape[2]
    q_blocks, k_blocks = T // _block_size(T), M // _block_size(M)
    q_ZBGxH = _split_heads(q_BTNH, G, q_blocks)
    k_ZBGmH, v_ZBGmH = (_split_heads(x, G, k_blocks) for x in (k_BMGH, v_BMGH))
    key_places = _split(keys, k_blocks)
    return _Blocks((q_ZBGxH, _split(queries, q_blocks)), (k_ZBGmH, v_ZBGmH, key_places))


def _block_size(tokens: int) -> int:
    """The largest divisor of `tokens` that is at most BLOCK."""
    return next(size for size in range(min(BLOCK, tokens), 0, -1) if tokens % size == 0)


def _split_heads(x_BTNH: jax.Array, G: int, Z: int) -> jax.Array:
    B, T, N, H = x_BTNH.shape
    x = x_BTNH.reshape(B, Z, T // Z, G, N // G, H)
    return x.transpose(1, 0, 3, 2, 4, 5).reshape(Z, B, G, -1, H)


def _join(x_ZBGxH: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The inverse of `_split_heads`."""
    (Z, _, G, _, _), (B, T, N, H) = x_ZBGxH.shape, shape
    x = x_ZBGxH.reshape(Z, B, G, T // Z, N // G, H)
    return x.transpose(1, 0, 3, 2, 4, 5).reshape(shape)


def _split(places: Places, Z: int) -> Places:
    return Places(*(p.reshape(p.shape[0], Z, -1).swapaxes(0, 1) for p in places))


def _mask(queries: Places, keys: Places, kind: Attention) -> jax.Array:
    """[B,t,m]: whether a query sees a key."""
    same = queries.segment_BT[:, :, None] == keys.segment_BT[:, None, :]
    return same & in_reach(queries.position_BT, keys.position_BT, kind.window)


def _scores(
    q_BGxH: jax.Array, k_BGmH: jax.Array, queries: Places, keys: Places, kind: Attention
) -> jax.Array:
    mask_Btm = _mask(queries, keys, kind)
    mask_Bxm = jnp.repeat(mask_Btm, q_BGxH.shape[2] // mask_Btm.shape[1], axis=1)
    product = _product("bgxh,bgmh->bgxm", q_BGxH, k_BGmH)
    return jnp.where(mask_Bxm[:, None], scores(product, kind), _MASKED)

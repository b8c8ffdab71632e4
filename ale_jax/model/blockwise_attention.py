"""Causal attention over packed rows, block by block: nothing of size T x T is ever held in memory.

A block of queries visits those blocks of keys alone that one of its queries may see. A causal row
therefore costs half as much as a full one, and segments that are packed into a long row cost what
they cost in rows of their own. Online softmax: Milakov and Gimelshein 2018. Gradient from saved
log-sum-exps: FlashAttention-2, Dao 2023, algorithms 1 and 2.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ale_jax.config.architecture import Attention
from ale_jax.model.compute import soft_capped
from ale_jax.model.sharding import current_device

BLOCK = {"cpu": 64}  # tokens; the caches of a CPU hold what is computed of so few
LARGE_BLOCK = 512  # on other platforms
_MASKED = -1e30  # finite, so that a query that sees no key does not give NaN
_LAST = jnp.iinfo(jnp.int32).max
# Of inputs in bfloat16, a sum that came out in bfloat16 would already be rounded.
_product = partial(jnp.einsum, preferred_element_type=jnp.float32)


class Places(NamedTuple):
    """Segment and position of each token, [B,T]. A token sees tokens of its segment alone, at its
    own position and before. Positions may count from the start of the segment, or of the row."""

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


def blockwise_attention(
    q_BTNH: jax.Array,
    k_BMGH: jax.Array,
    v_BMGH: jax.Array,
    queries: Places,
    keys: Places,
    kind: Attention,
    sink_N: jax.Array | None = None,
) -> jax.Array:
    """Computes the grouped-query attention of T queries over M keys, [B,T,N,H] with the width of
    the values. Both may be in any order, but most is left out where segments and positions ascend.
    sink_N: of a kind that has sinks."""

    def attend(row):
        q_TNH, k_MGH, v_MGH, queries, keys = row
        return _attend_row(q_TNH, k_MGH, v_MGH, _Row(*queries), _Row(*keys), kind, sink_N)

    # One row after another, as each has blocks of its own to visit.
    return jax.lax.map(attend, (q_BTNH, k_BMGH, v_BMGH, queries, keys))


class _Row(NamedTuple):
    """`Places` of one row, or of a block of it."""

    segment_T: jax.Array
    position_T: jax.Array


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend_row(q_TNH, k_MGH, v_MGH, queries: _Row, keys: _Row, kind: Attention, sink_N):
    return _forward(q_TNH, k_MGH, v_MGH, queries, keys, kind, sink_N)[0]


def _forward(q_TNH, k_MGH, v_MGH, queries: _Row, keys: _Row, kind: Attention, sink_N):
    blocks = _blocks(q_TNH, k_MGH, v_MGH, queries, keys, kind)

    def attend_block(query: _Queries):
        q_GxH = query.q

        def visit(i, state):
            max_Gx, sum_Gx, out_GxH = state
            _, key = blocks.visited(query, i)
            score_Gxm = _scores(query, key, kind)
            new_max = jnp.maximum(max_Gx, score_Gxm.max(axis=-1))
            weight, shrink = jnp.exp(score_Gxm - new_max[..., None]), jnp.exp(max_Gx - new_max)
            more_GxH = _product("gxm,gmh->gxh", weight.astype(key.v.dtype), key.v)
            out_GxH = out_GxH * shrink[..., None] + more_GxH
            return new_max, sum_Gx * shrink + weight.sum(axis=-1), out_GxH

        start = (
            jnp.full(q_GxH.shape[:-1], _MASKED, jnp.float32),
            jnp.zeros(q_GxH.shape[:-1], jnp.float32),
            jnp.zeros((*q_GxH.shape[:-1], v_MGH.shape[-1]), jnp.float32),
        )
        if sink_N is not None:  # as a key that was seen first, with a value of 0
            sink_Gx = _sinks(sink_N, q_GxH)
            start = sink_Gx, jnp.ones_like(sink_Gx), start[2]
        max_Gx, sum_Gx, out_GxH = jax.lax.fori_loop(0, query.visits.num, visit, start)
        sum_Gx = jnp.maximum(sum_Gx, 1e-30)
        return (out_GxH / sum_Gx[..., None]).astype(v_MGH.dtype), max_Gx + jnp.log(sum_Gx)

    out_ZGxH, lse_ZGx = jax.lax.map(attend_block, blocks.queries)
    out_TNH = _join(out_ZGxH, *q_TNH.shape[:2])
    return out_TNH, (q_TNH, k_MGH, v_MGH, queries, keys, sink_N, out_ZGxH, lse_ZGx)


def _backward(kind: Attention, kept, d_out_TNH):
    q_TNH, k_MGH, v_MGH, queries, keys, sink_N, out_ZGxH, lse_ZGx = kept
    blocks = _blocks(q_TNH, k_MGH, v_MGH, queries, keys, kind)
    d_out_ZGxH = _split_heads(d_out_TNH, k_MGH.shape[1])

    def block_gradient(total, block):
        query, out_GxH, lse_Gx, d_out_GxH = block
        product = d_out_GxH.astype(jnp.float32) * out_GxH.astype(jnp.float32)
        delta_Gx = product.sum(axis=-1)

        def visit(i, total):
            dq_GxH, dk_YGmH, dv_YGmH = total
            y, key = blocks.visited(query, i)
            score_Gxm = _scores(query, key, kind)
            weight = jnp.exp(score_Gxm - lse_Gx[..., None])
            d_weight = _product("gxh,gmh->gxm", d_out_GxH, key.v)
            d_score = weight * (d_weight - delta_Gx[..., None]) * kind.scale
            if kind.cap:
                capped = jnp.maximum(score_Gxm, -kind.cap)  # the square of a masked one overflows
                d_score *= 1 - (capped / kind.cap) ** 2
            d_score, weight = d_score.astype(query.q.dtype), weight.astype(d_out_GxH.dtype)
            dq_GxH += _product("gxm,gmh->gxh", d_score, key.k)
            dk_YGmH = dk_YGmH.at[y].add(_product("gxm,gxh->gmh", d_score, query.q))
            return dq_GxH, dk_YGmH, dv_YGmH.at[y].add(_product("gxm,gxh->gmh", weight, d_out_GxH))

        start = jnp.zeros(query.q.shape, jnp.float32), *total
        dq_GxH, *total = jax.lax.fori_loop(0, query.visits.num, visit, start)
        return tuple(total), (dq_GxH, _sink_gradient(sink_N, query.q, lse_Gx, delta_Gx))

    zeros = tuple(jnp.zeros(x.shape, jnp.float32) for x in (blocks.keys.k, blocks.keys.v))
    rows = blocks.queries, out_ZGxH, lse_ZGx, d_out_ZGxH
    (dk, dv), (dq, d_sink_ZN) = jax.lax.scan(block_gradient, zeros, rows)
    dq, dk, dv = (
        _join(d, *x.shape[:2]).astype(x.dtype) for d, x in ((dq, q_TNH), (dk, k_MGH), (dv, v_MGH))
    )
    d_sink_N = None if sink_N is None else d_sink_ZN.sum(axis=0).astype(sink_N.dtype)
    return dq, dk, dv, None, None, d_sink_N


_attend_row.defvjp(_forward, _backward)


def _sinks(sink_N: jax.Array, q_GxH: jax.Array) -> jax.Array:
    """Of a block of queries, [G,x]."""
    G, x, _ = q_GxH.shape
    return by_query(sink_N, G, x * G // len(sink_N))[0]


def _sink_gradient(sink_N, q_GxH, lse_Gx, delta_Gx) -> jax.Array | None:
    """Of a block of queries, [N]: a sink takes its share from what the keys give."""
    if sink_N is None:
        return None
    share_Gx = jnp.exp(_sinks(sink_N, q_GxH) - lse_Gx)
    by_head = (-share_Gx * delta_Gx).reshape(len(lse_Gx), -1, len(sink_N) // len(lse_Gx))
    return by_head.sum(axis=1).reshape(-1)


class _Visits(NamedTuple):
    """The blocks of keys that a block of queries visits: the first `num` of these."""

    order_Y: jax.Array
    num: jax.Array


class _Queries(NamedTuple):
    """A block of queries [G,x,H]: heads that share keys are adjacent."""

    q: jax.Array
    places: _Row
    visits: _Visits


class _Keys(NamedTuple):
    """A block of keys and values, [G,m,H]."""

    k: jax.Array
    v: jax.Array
    places: _Row


class _Blocks(NamedTuple):
    """All blocks of a row, [Z,...] and [Y,...]."""

    queries: _Queries
    keys: _Keys

    def visited(self, query: _Queries, i: jax.Array) -> tuple[jax.Array, _Keys]:
        """The number of the i-th block of keys that the queries visit, and the block."""
        y = query.visits.order_Y[i]
        return y, jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, y, 0, False), self.keys)


def _blocks(q_TNH, k_MGH, v_MGH, queries: _Row, keys: _Row, kind: Attention) -> _Blocks:
    G = k_MGH.shape[1]
    q_places, k_places = _split_places(queries), _split_places(keys)
    keys_in_blocks = _Keys(_split_heads(k_MGH, G), _split_heads(v_MGH, G), k_places)
    visits = _visits(q_places, k_places, kind.window)
    return _Blocks(_Queries(_split_heads(q_TNH, G), q_places, visits), keys_in_blocks)


def _visits(queries: _Row, keys: _Row, window: int) -> _Visits:
    """Of each block of queries: the blocks of keys whose ranges of segments and of positions are in
    reach of its own."""

    def ranges(places: _Row) -> tuple[jax.Array, ...]:
        return *(x.min(axis=1) for x in places), *(x.max(axis=1) for x in places)

    segment_Z, position_Z, last_segment_Z, last_position_Z = (x[:, None] for x in ranges(queries))
    segment_Y, position_Y, last_segment_Y, last_position_Y = (x[None] for x in ranges(keys))
    may_ZY = (segment_Z <= last_segment_Y) & (segment_Y <= last_segment_Z)
    may_ZY &= position_Y <= last_position_Z
    if window:
        may_ZY &= position_Z - last_position_Y < window
    return _Visits(jnp.argsort(~may_ZY, axis=1), may_ZY.sum(axis=1))


def _in_blocks(x_T: jax.Array, behind: int) -> jax.Array:
    """[T,...] -> [Z,t,...]. behind: what the last block is filled up with."""
    T = len(x_T)
    size = min(T, BLOCK.get(current_device().platform, LARGE_BLOCK))
    filled = jnp.pad(x_T, [(0, -T % size)] + [(0, 0)] * (x_T.ndim - 1), constant_values=behind)
    return filled.reshape(-1, size, *x_T.shape[1:])


def _split_places(row: _Row) -> _Row:
    """Padding is in segment 0, but comes last."""
    segment_T = jnp.where(row.segment_T == 0, _LAST, row.segment_T)
    return _Row(_in_blocks(segment_T, _LAST), _in_blocks(row.position_T, _LAST))


def _split_heads(x_TNH: jax.Array, G: int) -> jax.Array:
    """[T,N,H] -> [Z,G,x,H]"""
    x_ZtNH = _in_blocks(x_TNH, 0)
    Z, t, N, H = x_ZtNH.shape
    return x_ZtNH.reshape(Z, t, G, N // G, H).swapaxes(1, 2).reshape(Z, G, -1, H)


def _join(x_ZGxH: jax.Array, T: int, N: int) -> jax.Array:
    """The inverse of `_split_heads`."""
    Z, G, _, H = x_ZGxH.shape
    x_ZGtrH = x_ZGxH.reshape(Z, G, -1, N // G, H)
    return x_ZGtrH.swapaxes(1, 2).reshape(-1, N, H)[:T]


def _scores(query: _Queries, key: _Keys, kind: Attention) -> jax.Array:
    """[G,x,m]"""
    same_tm = query.places.segment_T[:, None] == key.places.segment_T[None, :]
    reach_tm = in_reach(query.places.position_T[None], key.places.position_T[None], kind.window)[0]
    seen_xm = jnp.repeat(same_tm & reach_tm, query.q.shape[1] // len(same_tm), axis=0)
    product_Gxm = _product("gxh,gmh->gxm", query.q, key.k)
    return jnp.where(seen_xm[None], scores(product_Gxm, kind), _MASKED)

"""Attention to the pages of conversations in plain XLA: of prefill on every platform, and of decode
steps on CPUs where conversations may be long or many.

A loop gathers a few pages of each conversation at a time, of as many as the longest one has and its
window reaches. All pages of a conversation, or all scores, are never in memory at once, and what it
could still grow by costs nothing. Online softmax: Milakov and Gimelshein 2018.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ale_jax.config.architecture import Attention
from ale_jax.model.blockwise_attention import by_query, in_reach, scores
from ale_jax.model.cache import (
    JoinedPages,
    JoinedRows,
    LatentRows,
    Pages,
    Rows,
    gather_rows,
    load,
    on_each_shard,
)
from ale_jax.model.layers import MASKED
from ale_jax.model.sharding import current_device

BLOCK = {"cpu": 128}  # tokens; the caches of a CPU hold what is computed of so few
LARGE_BLOCK = 512  # on other platforms
# Up to so many tokens of a conversation, and of all together, a CPU is faster with a copy.
COPIED, COPIED_TOGETHER = 512, 2048


def reads_in_place(platform: str, conversations: int, tokens: int) -> bool:
    """Returns whether decode steps of so many conversations use `attend_pages`, if each may have so
    many tokens. Otherwise all their pages are copied before the steps of a dispatch."""
    # Accelerators are fast with few large operations. A CPU's caches hold a small copy, which has
    # room for what conversations may still grow by, and is read in every step.
    is_small = tokens <= COPIED and conversations * tokens <= COPIED_TOGETHER
    return platform == "cpu" and not is_small


class Queries(NamedTuple):
    """Tokens that were written to the pages of their conversations, [B,T,N,H], and their positions.
    Others than real ones are padding."""

    q_BTNH: jax.Array
    position_BT: jax.Array
    is_real_BT: jax.Array


def attend_pages(
    queries: Queries,
    pages: Pages,
    page_BW: jax.Array,
    kind: Attention,
    sink_N: jax.Array | None = None,
) -> jax.Array:
    """Computes the attention of each query to the positions up to its own, [B,T,N,H] with the width
    of the values. For padding the numbers are finite, and mean nothing. sink_N: of a kind that has
    sinks.

    A conversation's numbers depend on no other: blocks that it does not see leave nothing behind.
    """
    attend = on_each_shard(f"BTN B B {pages.HEADS}P B N -> BTN")(partial(_attend, kind=kind))
    return attend(*queries, pages, page_BW, sink_N)


def _attend(q_BTNH, position_BT, is_real_BT, pages: Pages, page_BW, sink_N, *, kind: Attention):
    B, T, N, H = q_BTNH.shape
    G, r = (pages.num_heads, N // pages.num_heads)
    q_BGxH = q_BTNH.reshape(B, T, G, r, H).swapaxes(1, 2).reshape(B, G, T * r, H)
    at_once = _pages_at_once(pages.page_tokens, page_BW.shape[1])
    block_tokens = at_once * pages.page_tokens
    page_BW = jnp.pad(page_BW, ((0, 0), (0, -page_BW.shape[1] % at_once)))

    def visit(i, state):
        max_BGx, sum_BGx, out_BGxH = state
        now_BW = jax.lax.dynamic_slice_in_dim(page_BW, i * at_once, at_once, axis=1)
        k_BGmH, v_BGmH = keys_and_values(gather_rows(pages, now_BW), q_BTNH.dtype)
        position_m = i * block_tokens + jnp.arange(block_tokens)
        seen_BTm = in_reach(position_BT, position_m[None], kind.window)
        score_BGxm = _product("bgxh,bgmh->bgxm", q_BGxH, k_BGmH)
        seen_Bxm = jnp.repeat(seen_BTm, r, axis=1)
        score_BGxm = jnp.where(seen_Bxm[:, None], scores(score_BGxm, kind), MASKED)
        new_max = jnp.maximum(max_BGx, score_BGxm.max(axis=-1))
        weight, shrink = jnp.exp(score_BGxm - new_max[..., None]), jnp.exp(max_BGx - new_max)
        more_BGxH = _product("bgxm,bgmh->bgxh", weight.astype(v_BGmH.dtype), v_BGmH)
        out_BGxH = out_BGxH * shrink[..., None] + more_BGxH
        return new_max, sum_BGx * shrink + weight.sum(axis=-1), out_BGxH

    max_BGx, sum_BGx = jnp.full((B, G, T * r), MASKED), jnp.zeros((B, G, T * r))
    if sink_N is not None:  # as a key that was seen first, with a value of 0
        max_BGx = jnp.broadcast_to(by_query(sink_N, G, T), max_BGx.shape)
        sum_BGx = jnp.ones_like(sum_BGx)
    state = max_BGx, sum_BGx, jnp.zeros((B, G, T * r, pages.width))
    first, last = _reach(position_BT, is_real_BT, kind.window)
    _, sum_BGx, out_BGxH = jax.lax.fori_loop(
        first // block_tokens, last // block_tokens + 1, visit, state
    )
    out_BGxH = (out_BGxH / jnp.maximum(sum_BGx, 1e-30)[..., None]).astype(q_BTNH.dtype)
    return out_BGxH.reshape(B, G, T, r, -1).swapaxes(1, 2).reshape(B, T, N, -1)


# Of inputs in bfloat16, a sum that came out in bfloat16 would already be rounded.
_product = partial(jnp.einsum, preferred_element_type=jnp.float32)


def keys_and_values(rows: Rows, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
    """Returns the keys and values of rows, [B,G,M,H]. Latents are both, of one head. Their rotated
    keys are among the values, too, because to cut them off would copy the latents."""
    if isinstance(rows, JoinedRows):  # as `attend_joined` takes them
        kv_BGMH = load(rows.kv_BGMH, dtype)
        return kv_BGMH, kv_BGMH
    if isinstance(rows, LatentRows):
        latent_B1MO = load(rows.latent_BMO, dtype)[:, None]
        return latent_B1MO, latent_B1MO
    return load(rows.k_BGMH, dtype), load(rows.v_BGMH, dtype)


def attend_joined(
    stored: Pages | Rows, q_BTNH: jax.Array, attend: Callable[[jax.Array], jax.Array]
) -> jax.Array:
    """Returns what `attend` makes of queries. Where keys and values lie side by side, zeros meet
    the values, and of what is summed the keys are cut off: to cut apart what is stored would copy
    it."""
    if not isinstance(stored, JoinedPages | JoinedRows):
        return attend(q_BTNH)
    H = q_BTNH.shape[-1]
    return attend(jnp.pad(q_BTNH, [(0, 0)] * 3 + [(0, H)]))[..., H:]


def _pages_at_once(page_tokens: int, most: int) -> int:
    block = BLOCK.get(current_device().platform, LARGE_BLOCK)
    return min(max(1, block // page_tokens), most)


def _reach(position_BT, is_real_BT, window: int) -> tuple[jax.Array, jax.Array]:
    """The first and the last position that a real query sees; 0 and 0 if there is none."""
    last = jnp.where(is_real_BT, position_BT, 0).max()
    if not window:
        return jnp.zeros_like(last), last
    first = jnp.where(is_real_BT, position_BT, last).min() - (window - 1)
    return jnp.maximum(first, 0), last

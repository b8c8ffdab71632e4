"""Keys and values, or latents, of conversations that a call extends: in the pages of the cache, or
gathered."""

from __future__ import annotations

import dataclasses
from typing import Self

import jax
import jax.numpy as jnp
from flax import struct

from ale_jax.model.blockwise_attention import in_reach
from ale_jax.model.cache import (
    LayerPages,
    Pages,
    Rows,
    gather_rows,
    write_pages,
)
from ale_jax.model.layers import masked_attention
from ale_jax.model.page_attention import Queries, attend_pages, keys_and_values
from ale_jax.model.paged_attention import has_kernel, paged_attention


@struct.dataclass
class InPages:
    """Memory in the pages of the cache. platform: in a decode step its kernel reads the pages, if
    it has one."""

    pages: Pages
    page_BW: jax.Array
    platform: str = struct.field(pytree_node=False)

    @property
    def width(self) -> int:
        return self.pages.width

    def write(self, position_BT, is_real_BT, *new_BTGH) -> InPages:
        pages = write_pages(self.pages, self.page_BW, position_BT, is_real_BT, new_BTGH)
        return dataclasses.replace(self, pages=pages)

    def attend(self, q_BTNH, position_BT, is_real_BT, kind, sink_N=None) -> jax.Array:
        """Computes the attention of each query to the positions up to its own, [B,T,N,H]. sink_N:
        of a kind that has sinks."""
        if q_BTNH.shape[1] == 1 and has_kernel(self.platform, self.pages, kind):
            assert isinstance(self.pages, LayerPages)
            out_BNH = paged_attention(
                q_BTNH[:, 0],
                self.pages,
                self.page_BW,
                position_BT[:, 0] + 1,
                self.platform,
                kind,
            )
            return out_BNH[:, None]
        queries = Queries(q_BTNH, position_BT, is_real_BT)
        return attend_pages(queries, self.pages, self.page_BW, kind, sink_N)


@struct.dataclass
class InRows:
    """Memory for decode steps without such a kernel: the tokens of the pages are gathered once for
    all steps of a dispatch.

    The tokens of these steps follow them: the n-th token of each conversation is stored at the n-th
    of `steps` places. A step therefore writes at one place, instead of a different one for each
    conversation.

    start_B: tokens that were there before. count: steps so far. first: the first of the places.
    """

    rows: Rows
    start_B: jax.Array
    count: jax.Array
    first: int = struct.field(pytree_node=False)
    steps: int = struct.field(pytree_node=False)

    @classmethod
    def gather(cls, pages: Pages, page_BW: jax.Array, start_B: jax.Array, steps: int) -> Self:
        W, b = page_BW.shape[1], pages.page_tokens
        room = -(-steps // b)  # any pages will do: their content is masked
        rows = gather_rows(pages, jnp.pad(page_BW, ((0, 0), (0, room))))
        return cls(rows, start_B, jnp.int32(0), W * b, steps)

    @property
    def width(self) -> int:
        return self.rows.width

    def write(self, position_BT, is_real_BT, *new_BTGH) -> InRows:
        rows = self.rows.put(self.first + self.count, *new_BTGH)
        return dataclasses.replace(self, rows=rows, count=self.count + 1)

    def attend(self, q_BTNH, position_BT, is_real_BT, kind, sink_N=None) -> jax.Array:
        place_M = jnp.arange(self.rows.num_places)
        before_BM = place_M[None, :] < self.start_B[:, None]
        written_M = (place_M >= self.first) & (place_M < self.first + self.count)
        mask_BTM = (before_BM | written_M[None, :])[:, None]
        if kind.window:
            decoded_BM = self.start_B[:, None] + place_M[None, :] - self.first
            key_BM = jnp.where(place_M[None, :] < self.first, place_M[None, :], decoded_BM)
            mask_BTM &= in_reach(position_BT, key_BM, kind.window)
        k_BGMH, v_BGMH = keys_and_values(self.rows, q_BTNH.dtype)
        return masked_attention(q_BTNH, k_BGMH, v_BGMH, mask_BTM, kind, sink_N)

    def scatter(self, pages: Pages, page_BW: jax.Array, end_B: jax.Array) -> Pages:
        """Writes the decoded tokens before position `end_B` of each conversation to the pages."""
        position_BT = self.start_B[:, None] + jnp.arange(self.steps)[None, :]
        is_real_BT = position_BT < end_B[:, None]
        new_BTGH = self.rows.take(self.first, self.steps)
        return write_pages(pages, page_BW, position_BT, is_real_BT, new_BTGH)

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
from ale_jax.model.page_attention import (
    Queries,
    attend_joined,
    attend_pages,
    keys_and_values,
)
from ale_jax.model.paged_attention import has_kernel, paged_attention

NOWHERE = jnp.iinfo(jnp.int32).max  # a position that no query reaches


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

        def attend(q_BTNH: jax.Array) -> jax.Array:
            queries = Queries(q_BTNH, position_BT, is_real_BT)
            return attend_pages(queries, self.pages, self.page_BW, kind, sink_N)

        return attend_joined(self.pages, q_BTNH, attend)


@struct.dataclass
class InRows:
    """Memory for decode steps without such a kernel: the tokens of the pages are gathered once for
    all steps of a dispatch.

    The tokens that are written in these steps follow them, in the order in which they come: those
    of all conversations at the same places, of which there are `room`. A step therefore writes at
    one place, instead of a different one for each conversation.

    start_B: tokens that were there before. position_BR: of the token at each of these places;
    NOWHERE if the conversation has none there, or another was written at its position later. count:
    places that are taken. first: the first of the places.
    """

    rows: Rows
    start_B: jax.Array
    position_BR: jax.Array
    count: jax.Array
    first: int = struct.field(pytree_node=False)

    @classmethod
    def gather(cls, pages: Pages, page_BW: jax.Array, start_B: jax.Array, room: int) -> Self:
        W, b = page_BW.shape[1], pages.page_tokens
        more = -(-room // b)  # any pages will do: their content is masked
        rows = gather_rows(pages, jnp.pad(page_BW, ((0, 0), (0, more))))
        position_BR = jnp.full((len(start_B), room), NOWHERE, jnp.int32)
        return cls(rows, start_B, position_BR, jnp.int32(0), W * b)

    @property
    def width(self) -> int:
        return self.rows.width

    def write(self, position_BT, is_real_BT, *new_BTGH) -> InRows:
        old_BR, new_BT = self.position_BR, jnp.where(is_real_BT, position_BT, NOWHERE)
        old_BR = jnp.where(old_BR < position_BT[:, :1], old_BR, NOWHERE)
        position_BR = jax.lax.dynamic_update_slice_in_dim(old_BR, new_BT, self.count, axis=1)
        rows = self.rows.put(self.first + self.count, *new_BTGH)
        count = self.count + position_BT.shape[1]
        return dataclasses.replace(self, rows=rows, position_BR=position_BR, count=count)

    def attend(self, q_BTNH, position_BT, is_real_BT, kind, sink_N=None) -> jax.Array:
        place_M = jnp.arange(self.rows.num_places)
        key_BM = jnp.where(place_M[None] < self.start_B[:, None], place_M[None], NOWHERE)
        key_BM = jax.lax.dynamic_update_slice_in_dim(key_BM, self.position_BR, self.first, axis=1)
        mask_BTM = in_reach(position_BT, key_BM, kind.window)
        k_BGMH, v_BGMH = keys_and_values(self.rows, q_BTNH.dtype)
        return attend_joined(
            self.rows,
            q_BTNH,
            lambda q_BTNH: masked_attention(q_BTNH, k_BGMH, v_BGMH, mask_BTM, kind, sink_N),
        )

    def scatter(self, pages: Pages, page_BW: jax.Array, end_B: jax.Array) -> Pages:
        """Writes the decoded tokens before position `end_B` of each conversation to the pages."""
        is_real_BR = self.position_BR < end_B[:, None]
        new_BRGH = self.rows.take(self.first, self.position_BR.shape[1])
        return write_pages(pages, page_BW, self.position_BR, is_real_BR, new_BRGH)

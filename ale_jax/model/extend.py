"""New tokens of many conversations through all layers, each seeing what its cache holds."""

from __future__ import annotations

from typing import Protocol, Self

import jax
import jax.numpy as jnp
from flax import struct

from ale_jax.model.cache import (
    LayerPages,
    LayerRows,
    gather_rows,
    load,
    write_pages,
    write_rows,
)
from ale_jax.model.layers import attend, feed_forward, project_qkv, rms_norm
from ale_jax.model.paged_attention import has_kernel, paged_attention
from ale_jax.model.params import Params
from ale_jax.model.shape import PolicyShape


class LayerMemory(Protocol):
    """What one layer remembers of the conversations."""

    def write(
        self, position_BT: jax.Array, is_real_BT: jax.Array, k_BTGH: jax.Array, v_BTGH: jax.Array
    ) -> Self: ...

    def attend(self, layer: Params, q_BTNH: jax.Array, position_BT: jax.Array) -> jax.Array:
        """Attention of each query to the positions up to its own, projected: [B,T,D]."""
        ...


@struct.dataclass
class InRows:
    rows: LayerRows

    def write(self, position_BT, is_real_BT, k_BTGH, v_BTGH) -> InRows:
        return InRows(write_rows(self.rows, position_BT, is_real_BT, k_BTGH, v_BTGH))

    def attend(self, layer, q_BTNH, position_BT) -> jax.Array:
        k_BGMH = load(self.rows.k_BGHM, q_BTNH.dtype).swapaxes(2, 3)
        v_BGMH = load(self.rows.v_BGMH, q_BTNH.dtype)
        mask_BTM = jnp.arange(k_BGMH.shape[2])[None, None, :] <= position_BT[:, :, None]
        return attend(layer, q_BTNH, k_BGMH, v_BGMH, mask_BTM)


@struct.dataclass
class InPages:
    """platform: whose kernel reads the pages in a decode step, if it has one."""

    pages: LayerPages
    page_BW: jax.Array
    platform: str = struct.field(pytree_node=False)

    def write(self, position_BT, is_real_BT, k_BTGH, v_BTGH) -> InPages:
        pages = write_pages(self.pages, self.page_BW, position_BT, is_real_BT, k_BTGH, v_BTGH)
        return self.replace(pages=pages)

    def attend(self, layer, q_BTNH, position_BT) -> jax.Array:
        if q_BTNH.shape[1] == 1 and has_kernel(self.platform, self.pages):
            out_BNH = paged_attention(
                q_BTNH[:, 0], self.pages, self.page_BW, position_BT[:, 0] + 1, self.platform
            )
            return jnp.einsum("bnh,nhd->bd", out_BNH, layer["o_NHD"])[:, None]
        rows = InRows(gather_rows(self.pages, self.page_BW))
        return rows.attend(layer, q_BTNH, position_BT)


def extend(
    params: Params,
    memory: list[LayerMemory],
    tokens_BT: jax.Array,
    start_B: jax.Array,
    count_B: jax.Array,
    shape: PolicyShape,
) -> tuple[list[LayerMemory], jax.Array]:
    """Runs B rows of new tokens, appended to their conversations from position `start_B` on.

    Of each row the first `count_B` tokens are real; the others are remembered nowhere. All rows of
    a layer are written before any is read, so that consecutive pieces of one conversation may be
    rows of one call. Returns the memory and the final hidden states [B,T,D].
    """
    offset_BT = jnp.arange(tokens_BT.shape[1])[None, :]
    position_BT, is_real_BT = start_B[:, None] + offset_BT, offset_BT < count_B[:, None]
    x_BTD = params["embed_VD"][tokens_BT]
    extended = []
    for layer, layer_memory in zip(params["layers"], memory, strict=True):
        q, k, v = project_qkv(layer, x_BTD, position_BT, shape)
        layer_memory = layer_memory.write(position_BT, is_real_BT, k, v)
        extended.append(layer_memory)
        x_BTD = x_BTD + layer_memory.attend(layer, q, position_BT)
        x_BTD = x_BTD + feed_forward(layer, x_BTD, shape)[0]
    return extended, rms_norm(x_BTD, params["final_norm_D"], shape.norm_eps)

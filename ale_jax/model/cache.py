"""The key/value cache: pages of a fixed number of tokens; each conversation names its own in order.

A page is one index into every layer's arrays. Which page is whose is the host's affair
(rollout/pages.py): here, a conversation is a row of page numbers, its token t lying in page
`row[t // page_tokens]` at `t % page_tokens`. What lies behind a conversation's length is garbage
that no mask lets through, so that a page needs no cleaning before its next use. On a mesh each
device has the pages of its own share of the conversations (model/shares.py).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from ale_jax.model.shape import PolicyShape
from ale_jax.model.shares import on_each_share


@struct.dataclass
class Int8:
    """Numbers as value * scale: int8 [...,H] and float32 [...,1], a scale per token and head."""

    value: jax.Array
    scale: jax.Array


Stored = jax.Array | Int8


@struct.dataclass
class LayerPages:
    """Keys and values of one layer, [G,P,b,H]: P pages of b tokens. Heads stand first, as the
    kernels of GPU and TPU want them (model/paged_attention.py)."""

    k_GPbH: Stored
    v_GPbH: Stored

    @property
    def num_pages(self) -> int:
        return jax.tree.leaves(self.k_GPbH)[0].shape[1]

    @property
    def page_tokens(self) -> int:
        return jax.tree.leaves(self.k_GPbH)[0].shape[2]


@struct.dataclass
class LayerRows:
    """Keys and values of one layer, [B,G,M,H]: each conversation's tokens in one piece."""

    k_BGMH: Stored
    v_BGMH: Stored

    @property
    def num_places(self) -> int:
        return jax.tree.leaves(self.k_BGMH)[0].shape[2]

    def put(self, place: jax.Array, k_BTGH: jax.Array, v_BTGH: jax.Array) -> LayerRows:
        """T tokens of every conversation from this place on."""

        def put(old: Stored, new_BTGH: jax.Array) -> Stored:
            return jax.tree.map(
                lambda o, n: jax.lax.dynamic_update_slice_in_dim(o, n, place, axis=2),
                old,
                store_as(new_BTGH.swapaxes(1, 2), old),
            )

        return LayerRows(put(self.k_BGMH, k_BTGH), put(self.v_BGMH, v_BTGH))

    def take(self, place: int, tokens: int) -> tuple[Stored, Stored]:
        """Keys and values of so many tokens from this place on, [B,T,G,H]."""

        def take(x_BGMH: jax.Array) -> jax.Array:
            return x_BGMH[:, :, place : place + tokens].swapaxes(1, 2)

        return jax.tree.map(take, self.k_BGMH), jax.tree.map(take, self.v_BGMH)


Cache = list[LayerPages]


def empty_cache(
    shape: PolicyShape, num_pages: int, page_tokens: int, dtype: jnp.dtype = jnp.float32
) -> Cache:
    """dtype int8: symmetric, with a scale per token and head."""
    size = (shape.num_kv_heads, num_pages, page_tokens, shape.head_width)

    def zeros() -> Stored:
        if dtype == jnp.int8:
            return Int8(jnp.zeros(size, jnp.int8), jnp.zeros((*size[:-1], 1), jnp.float32))
        return jnp.zeros(size, dtype)

    return [LayerPages(zeros(), zeros()) for _ in range(shape.num_layers)]


@on_each_share("GP B B B BTG BTG -> GP")
def write_pages(
    pages: LayerPages,
    page_BW: jax.Array,
    position_BT: jax.Array,
    is_real_BT: jax.Array,
    k_BTGH: Stored,
    v_BTGH: Stored,
) -> LayerPages:
    """Puts tokens where their conversations have them; those that are not real go nowhere."""
    place_BT = jnp.minimum(position_BT // pages.page_tokens, page_BW.shape[1] - 1)
    page_BT = jnp.take_along_axis(page_BW, place_BT, axis=1)
    page_BT = jnp.where(is_real_BT, page_BT, pages.num_pages)
    offset_BT = position_BT % pages.page_tokens

    def write(old: Stored, new: Stored) -> Stored:
        new = new if isinstance(new, Int8) else store_as(new, old)
        return jax.tree.map(
            lambda o, n: o.at[:, page_BT, offset_BT].set(jnp.moveaxis(n, 2, 0), mode="drop"),
            old,
            new,
        )

    return LayerPages(write(pages.k_GPbH, k_BTGH), write(pages.v_GPbH, v_BTGH))


@on_each_share("GP B -> BG")
def gather_rows(pages: LayerPages, page_BW: jax.Array) -> LayerRows:
    """A copy of the conversations' pages with their tokens in one piece."""
    B, W = page_BW.shape

    def gather(x_GPbH: jax.Array) -> jax.Array:
        G, _, b, H = x_GPbH.shape
        return x_GPbH[:, page_BW].swapaxes(0, 1).reshape(B, G, W * b, H)

    return LayerRows(jax.tree.map(gather, pages.k_GPbH), jax.tree.map(gather, pages.v_GPbH))


def store_as(x: jax.Array, like: Stored) -> Stored:
    """`x` in the form of `like`. Int8: the largest of each token and head becomes 127."""
    if not isinstance(like, Int8):
        return x.astype(like.dtype)
    x32 = x.astype(jnp.float32)
    scale = jnp.abs(x32).max(axis=-1, keepdims=True) / 127
    value = jnp.round(x32 / jnp.where(scale == 0, 1, scale))
    return Int8(value.astype(jnp.int8), scale)


def load(stored: Stored, dtype: jnp.dtype) -> jax.Array:
    if isinstance(stored, Int8):
        return (stored.value.astype(jnp.float32) * stored.scale).astype(dtype)
    return stored.astype(dtype)

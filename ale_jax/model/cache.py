"""The KV cache: pages of a fixed number of tokens, sharded over the data axes.

A page is one index into the arrays of every layer. The host decides which conversation has which
pages (engine/pages.py). Here a conversation is a row of page numbers: its token t is in page
`row[t // page_tokens]` at `t % page_tokens`. Entries beyond a conversation's length are masked, so
a page need not be cleared before it is used again.

On a mesh the data axes divide slots, pages and rows of chunks into as many shards as devices. The
pages of a slot belong to its own shard, and page numbers count from the first page of the shard, so
each device computes with its own shard and nothing is transferred.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from ale_jax.config.architecture import Attention
from ale_jax.model.sharding import RULES


def place(dims: str, mesh: AbstractMesh | Mesh) -> PartitionSpec:
    """Returns the PartitionSpec of an array with these dims, one letter each. Slots or rows B and
    pages P are sharded along the data axes, heads N and G along "tensor", other dims not at all.
    Dims after the named ones are not sharded."""

    def cut(dim: str) -> tuple[str, ...] | None:
        axes = {"B": "batch", "P": "batch", "N": "heads", "G": "kv_heads"}.get(dim)
        return tuple(a for a in RULES[axes] if mesh.shape[a] > 1) or None if axes else None

    cuts = [cut(dim) for dim in dims]
    # The compiler drops trailing Nones from the specs of its results. Specs that differ from those
    # would cause a recompilation.
    while cuts and cuts[-1] is None:
        cuts.pop()
    return PartitionSpec(*cuts)


def page_sharding(mesh: AbstractMesh | Mesh) -> NamedSharding:
    """Returns the sharding of pages."""
    return NamedSharding(mesh, place("GP", mesh))


def on_each_shard(dims: str) -> Callable[[Callable], Callable]:
    """Decorates a function of arrays (or trees of them) that each device applies to its own shard.

    dims: of every argument and of the result, such as "GP B -> BG" (see `place`). Without a mesh of
    several devices, and within such a function, the function is called as it is.
    """
    takes, gives = (side.split() for side in dims.split("->"))

    def decorate(function: Callable) -> Callable:
        @functools.wraps(function)
        def apply(*arrays):
            mesh = jax.sharding.get_abstract_mesh()
            if mesh.empty or mesh.size == 1 or mesh.manual_axes:
                return function(*arrays)
            return jax.shard_map(
                function,
                in_specs=tuple(place(each, mesh) for each in takes),
                out_specs=place(*gives, mesh),
                check_vma=False,
            )(*arrays)

        return apply

    return decorate


@struct.dataclass
class Int8:
    """Numbers as value * scale: int8 [...,H] and float32 [...,1], one scale per token and head."""

    value: jax.Array
    scale: jax.Array


Stored = jax.Array | Int8


@struct.dataclass
class LayerPages:
    """Keys and values of one layer, [G,P,b,H]. Heads come first, as the GPU and TPU kernels expect
    (model/paged_attention.py)."""

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
    """Keys and values of one layer, [B,G,M,H]: each conversation's tokens are contiguous."""

    k_BGMH: Stored
    v_BGMH: Stored

    @property
    def num_places(self) -> int:
        return jax.tree.leaves(self.k_BGMH)[0].shape[2]

    def put(self, place: jax.Array, k_BTGH: jax.Array, v_BTGH: jax.Array) -> LayerRows:
        """Writes T tokens of every conversation, from this place on."""

        def put(old: Stored, new_BTGH: jax.Array) -> Stored:
            return jax.tree.map(
                lambda o, n: jax.lax.dynamic_update_slice_in_dim(o, n, place, axis=2),
                old,
                store_as(new_BTGH.swapaxes(1, 2), old),
            )

        return LayerRows(put(self.k_BGMH, k_BTGH), put(self.v_BGMH, v_BTGH))

    def take(self, place: int, tokens: int) -> tuple[Stored, Stored]:
        """Keys and values of `tokens` tokens from this place on, [B,T,G,H]."""

        def take(x_BGMH: jax.Array) -> jax.Array:
            return x_BGMH[:, :, place : place + tokens].swapaxes(1, 2)

        return jax.tree.map(take, self.k_BGMH), jax.tree.map(take, self.v_BGMH)


Cache = list[LayerPages]


def empty_pages(kind: Attention, num_pages: int, page_tokens: int, dtype: jnp.dtype) -> LayerPages:
    """Returns pages of zeros. dtype int8: symmetric quantisation, with one scale per token and
    head."""

    def zeros() -> Stored:
        size = (kind.num_kv_heads, num_pages, page_tokens, kind.head_width)
        if dtype == jnp.int8:
            return Int8(jnp.zeros(size, jnp.int8), jnp.zeros((*size[:-1], 1), jnp.float32))
        return jnp.zeros(size, dtype)

    return LayerPages(zeros(), zeros())


@on_each_shard("GP B B B BTG BTG -> GP")
def write_pages(
    pages: LayerPages,
    page_BW: jax.Array,
    position_BT: jax.Array,
    is_real_BT: jax.Array,
    k_BTGH: Stored,
    v_BTGH: Stored,
) -> LayerPages:
    """Writes tokens to their conversations' pages. Tokens that are not real are dropped."""
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


@on_each_shard("GP B -> BG")
def gather_rows(pages: LayerPages, page_BW: jax.Array) -> LayerRows:
    """Returns a copy of the conversations' pages in which each conversation's tokens are
    contiguous."""
    B, W = page_BW.shape

    def gather(x_GPbH: jax.Array) -> jax.Array:
        G, _, b, H = x_GPbH.shape
        return x_GPbH[:, page_BW].swapaxes(0, 1).reshape(B, G, W * b, H)

    return LayerRows(jax.tree.map(gather, pages.k_GPbH), jax.tree.map(gather, pages.v_GPbH))


@on_each_shard("GP B BG -> GP")
def scatter_rows(pages: LayerPages, page_BW: jax.Array, rows: LayerRows) -> LayerPages:
    """Fills pages with rows as `gather_rows` returns them. Page numbers that do not exist are
    dropped."""
    B, W = page_BW.shape

    def scatter(x_GPbH: jax.Array, x_BGMH: jax.Array) -> jax.Array:
        G, _, b, H = x_GPbH.shape
        new_GBWbH = x_BGMH.reshape(B, G, W, b, H).swapaxes(0, 1)
        return x_GPbH.at[:, page_BW].set(new_GBWbH, mode="drop")

    return jax.tree.map(scatter, pages, LayerPages(rows.k_BGMH, rows.v_BGMH))


@jax.jit
def copy_out(cache: Cache, page_BW: jax.Array) -> list[LayerRows]:
    """Returns the content of pages of every layer. B: the data shards, each of which has its own
    pages."""
    return [gather_rows(pages, page_BW) for pages in cache]


@functools.partial(jax.jit, donate_argnames="cache")
def copy_in(cache: Cache, page_BW: jax.Array, layers: list[LayerRows]) -> Cache:
    """Fills pages with what `copy_out` took from them or others, to the last bit."""
    return [scatter_rows(pages, page_BW, rows) for pages, rows in zip(cache, layers, strict=True)]


def store_as(x: jax.Array, like: Stored) -> Stored:
    """`x` stored as `like` is. Int8: the largest magnitude of each token and head becomes 127."""
    if not isinstance(like, Int8):
        return x.astype(like.dtype)
    x32 = x.astype(jnp.float32)
    scale = jnp.abs(x32).max(axis=-1, keepdims=True) / 127
    value = jnp.round(x32 / jnp.where(scale == 0, 1, scale))
    return Int8(value.astype(jnp.int8), scale)


def load(stored: Stored, dtype: jnp.dtype) -> jax.Array:
    """Returns stored keys or values in `dtype`; int8 is dequantised."""
    if isinstance(stored, Int8):
        return (stored.value.astype(jnp.float32) * stored.scale).astype(dtype)
    return stored.astype(dtype)

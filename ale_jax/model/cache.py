"""The KV cache: pages of a fixed number of tokens, sharded over the data axes. Where keys and
values are made of latents, it has the latents instead.

A page is one index into the arrays of every layer. The host decides which conversation has which
pages (engine/pages.py). Here a conversation is a row of page numbers: its token t is in page
`row[t // page_tokens]` at `t % page_tokens`. Entries beyond a conversation's length are masked, so
a page need not be cleared before it is used again.

On a mesh the data axes divide slots, pages and rows of chunks into as many shards as devices. The
pages of a slot belong to its own shard, and page numbers count from the first page of the shard, so
each device computes with its own shard and nothing is transferred.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from ale_jax.config.architecture import Attention, Latent, Mixer
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


class _Arrays:
    """What is stored of one layer. HEADS: the letter of the arrays' axis of heads, or nothing where
    all heads share what is stored."""

    HEADS = "G"

    @property
    def arrays(self) -> list[Stored]:
        return [getattr(self, field.name) for field in dataclasses.fields(self)]  # type: ignore[arg-type]

    @property
    def width(self) -> int:
        """Numbers of a token and head, with what `empty_pages` adds to them."""
        return self._size(-1)

    def _size(self, axis: int) -> int:
        return jax.tree.leaves(self)[0].shape[axis]


class _AnyPages(_Arrays):
    """Arrays [G,P,b,H] or [P,b,H]. Heads come first, as the GPU and TPU kernels expect
    (model/paged_attention.py)."""

    @property
    def num_pages(self) -> int:
        return self._size(-3)

    @property
    def page_tokens(self) -> int:
        return self._size(-2)

    @property
    def num_heads(self) -> int:
        """Heads of keys, or 1 where all share what is stored."""
        return self._size(0) if self.HEADS else 1


class _AnyRows(_Arrays):
    """Arrays [B,G,M,H] or [B,M,H]: each conversation's tokens are contiguous."""

    @property
    def num_places(self) -> int:
        return self._size(-2)

    def put(self, place: jax.Array, *new_BTGH: jax.Array) -> Self:
        """Writes T tokens of every conversation, from this place on."""

        def put(old: Stored, new_BTGH: jax.Array) -> Stored:
            return jax.tree.map(
                lambda o, n: jax.lax.dynamic_update_slice_in_dim(o, n, place, axis=o.ndim - 2),
                old,
                store_as(jnp.moveaxis(new_BTGH, 1, -2), old),
            )

        return type(self)(*map(put, self.arrays, joined(self, new_BTGH)))

    def take(self, place: int, tokens: int) -> list[Stored]:
        """Each array's part of `tokens` tokens from this place on, [B,T,G,H] or [B,T,H]."""

        def take(x_BGMH: jax.Array) -> jax.Array:
            return jnp.moveaxis(x_BGMH[..., place : place + tokens, :], -2, 1)

        return jax.tree.map(take, self.arrays)


@struct.dataclass
class LayerPages(_AnyPages):
    """Keys and values."""

    k_GPbH: Stored
    v_GPbH: Stored


@struct.dataclass
class LayerRows(_AnyRows):
    """Keys and values."""

    k_BGMH: Stored
    v_BGMH: Stored


@struct.dataclass
class LatentPages(_AnyPages):
    """What the keys and values of all heads are made of. It is not sharded over heads."""

    latent_PbO: Stored
    HEADS = ""


@struct.dataclass
class LatentRows(_AnyRows):
    """What the keys and values of all heads are made of."""

    latent_BMO: Stored
    HEADS = ""


@struct.dataclass
class JoinedPages(_AnyPages):
    """Keys and values side by side, each of half the width."""

    kv_GPbH: Stored


@struct.dataclass
class JoinedRows(_AnyRows):
    """Keys and values side by side, each of half the width."""

    kv_BGMH: Stored


Pages = LayerPages | LatentPages | JoinedPages
Rows = LayerRows | LatentRows | JoinedRows
_ROWS: dict[type[Pages], type[Rows]] = {
    LayerPages: LayerRows,
    LatentPages: LatentRows,
    JoinedPages: JoinedRows,
}
# By platform, what widths are a multiple of. A TPU has 128 lanes. It is given and returns arrays of
# another width with the pages as their last dim, and each dispatch would copy all pages to the form
# in which tokens are read and written, and back. So latents have zeros behind them, and keys and
# values of half that width lie side by side.
LANES = {"tpu": 128}


def empty_pages(
    kind: Attention | Latent, num_pages: int, page_tokens: int, dtype: jnp.dtype, platform: str
) -> Pages:
    """Returns pages of zeros for a platform. dtype int8: symmetric quantisation, with one scale per
    token and head. ValueError for latents, whose parts differ too much in size for one scale."""
    if isinstance(kind, Latent):
        if dtype == jnp.int8:
            raise ValueError(
                "engine.int8_cache True is not supported for latent attention: set it to False"
            )
        unit = LANES.get(platform, 1)
        width = -(-kind.stored_width // unit) * unit
        return LatentPages(jnp.zeros((num_pages, page_tokens, width), dtype))

    def zeros(width: int = kind.head_width) -> Stored:
        size = (kind.num_kv_heads, num_pages, page_tokens, width)
        if dtype == jnp.int8:
            return Int8(jnp.zeros(size, jnp.int8), jnp.zeros((*size[:-1], 1), jnp.float32))
        return jnp.zeros(size, dtype)

    if 2 * kind.head_width == LANES.get(platform) and dtype != jnp.int8:
        return JoinedPages(zeros(2 * kind.head_width))
    return LayerPages(zeros(), zeros())


def page_sharding(kind: Mixer, mesh: AbstractMesh | Mesh) -> NamedSharding:
    """Returns the sharding of pages."""
    pages = LatentPages if isinstance(kind, Latent) else LayerPages
    return NamedSharding(mesh, place(f"{pages.HEADS}P", mesh))


def row_sharding(rows: Rows, mesh: Mesh) -> NamedSharding:
    """Returns the sharding of rows."""
    return NamedSharding(mesh, place(f"B{rows.HEADS}", mesh))


def write_pages(
    pages: Pages,
    page_BW: jax.Array,
    position_BT: jax.Array,
    is_real_BT: jax.Array,
    new_BTGH: Sequence[Stored],
) -> Pages:
    """Writes tokens to their conversations' pages. Tokens that are not real are dropped. new_BTGH:
    keys and values, or latents, or the arrays that rows of such pages have."""
    heads = pages.HEADS
    new_BTGH = joined(pages, new_BTGH)
    write = on_each_shard(f"{heads}P B B B BT{heads} -> {heads}P")(_write_pages)
    return write(pages, page_BW, position_BT, is_real_BT, list(new_BTGH))


def joined(stored: _Arrays, new_BTGH: Sequence[Any]) -> Sequence[Any]:
    """Returns new tokens' keys and values as pages or rows store them."""
    if not isinstance(stored, JoinedPages | JoinedRows) or len(new_BTGH) == 1:
        return new_BTGH
    return [jnp.concatenate(new_BTGH, axis=-1)]


def _write_pages(pages: Pages, page_BW, position_BT, is_real_BT, new_BTGH: list[Stored]) -> Pages:
    place_BT = jnp.minimum(position_BT // pages.page_tokens, page_BW.shape[1] - 1)
    page_BT = jnp.take_along_axis(page_BW, place_BT, axis=1)
    token_BT = page_BT * pages.page_tokens + position_BT % pages.page_tokens

    def put(old: jax.Array, new: jax.Array) -> jax.Array:
        """old: [G,P,b,H] or [P,b,H]. new: [B,T,G,H] or [B,T,H]."""
        *heads, P, b, H = old.shape
        G = heads[0] if heads else 1
        head_11G = P * b * jnp.arange(G)[None, None]
        index_BTG = jnp.where(is_real_BT[..., None], token_BT[..., None] + head_11G, G * P * b)
        # Each head of a token is a row of its own. If one row had all heads of a token, a TPU's
        # compiler would store them next to each other, and copy all pages in each step, as the
        # kernel that reads them expects another form.
        flat = old.reshape(-1, H).at[index_BTG].set(new.reshape(*index_BTG.shape, H), mode="drop")
        return flat.reshape(old.shape)

    def write(old: Stored, new: Stored) -> Stored:
        new = new if isinstance(new, Int8) else store_as(new, old)
        return jax.tree.map(put, old, new)

    return type(pages)(*map(write, pages.arrays, new_BTGH))


def gather_rows(pages: Pages, page_BW: jax.Array) -> Rows:
    """Returns a copy of the conversations' pages in which each conversation's tokens are
    contiguous."""
    gather = on_each_shard(f"{pages.HEADS}P B -> B{pages.HEADS}")(_gather_rows)
    return gather(pages, page_BW)


def _gather_rows(pages: Pages, page_BW: jax.Array) -> Rows:
    B, W = page_BW.shape

    def gather(x_GPbH: jax.Array) -> jax.Array:
        *heads, P, b, H = x_GPbH.shape
        if not heads:
            return x_GPbH[page_BW].reshape(B, W * b, H)
        # In the order of the result, which would otherwise be transposed behind the gather.
        page_BGW = page_BW[:, None] + P * jnp.arange(heads[0])[None, :, None]
        return x_GPbH.reshape(-1, b, H)[page_BGW].reshape(B, *heads, W * b, H)

    return _ROWS[type(pages)](*jax.tree.map(gather, pages.arrays))


def scatter_rows(pages: Pages, page_BW: jax.Array, rows: Rows) -> Pages:
    """Fills pages with rows as `gather_rows` returns them. Page numbers that do not exist are
    dropped."""
    heads = pages.HEADS
    scatter = on_each_shard(f"{heads}P B B{heads} -> {heads}P")(_scatter_rows)
    return scatter(pages, page_BW, rows)


def _scatter_rows(pages: Pages, page_BW: jax.Array, rows: Rows) -> Pages:
    B, W = page_BW.shape

    def scatter(x_GPbH: jax.Array, x_BGMH: jax.Array) -> jax.Array:
        *heads, _, b, H = x_GPbH.shape
        new_GBWbH = jnp.moveaxis(x_BGMH.reshape(B, *heads, W, b, H), 0, -4)
        return x_GPbH.at[..., page_BW, :, :].set(new_GBWbH, mode="drop")

    return type(pages)(*jax.tree.map(scatter, pages.arrays, rows.arrays))


@jax.jit
def copy_out(cache: list[Pages], page_BW: jax.Array) -> list[Rows]:
    """Returns the content of pages of every layer. B: the data shards, each of which has its own
    pages."""
    return [gather_rows(pages, page_BW) for pages in cache]


@functools.partial(jax.jit, donate_argnames="cache")
def copy_in(cache: list[Pages], page_BW: jax.Array, layers: list[Rows]) -> list[Pages]:
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

"""Pages that are swapped out to the host's memory, and back in, to the last bit.

To prefill the tokens again instead would change the last bits of those that decode steps wrote.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Protocol

import jax
import numpy as np
from jax.sharding import Mesh

from ale_jax.config.engine import EngineShape
from ale_jax.model.cache import Cache, Rows, copy_in, copy_out, row_sharding

Layers = list[Rows]


class PageRecord(Protocol):
    """What goes with the pages: `dispatch.ExpertRecord`, for router replay."""

    def of_pages(self, shard: int, pages: Sequence[int]) -> np.ndarray: ...

    def put_pages(self, shard: int, pages: Sequence[int], expert_PbLK: np.ndarray) -> None: ...


@dataclasses.dataclass
class SwappedPages:
    """What some pages of one conversation held.

    layers: their arrays, each [G,T,H] or [T,H] for the T tokens of the pages. None until the
    dispatch that copies them is over. expert_PbLK: what is recorded of experts, if that is wanted.
    """

    num_pages: int
    layers: Layers | None = None
    expert_PbLK: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class _Swap:
    """pages: in the shard's own numbers; those of the content from its page `first` on."""

    pages: tuple[int, ...]
    content: SwappedPages
    first: int = 0


class PageSwaps:
    """What one dispatch swaps before it computes: pages out of the cache, then others into it.

    Of each data shard there is room for `EngineShape.swapped_pages`, in each direction, so that
    `ale-jax plan` knows what the copies take. A program is compiled for each power of two.
    """

    def __init__(self, shape: EngineShape, shards: int):
        """shape: the sizes of each shard."""
        self._room, self._page_tokens = shape.swapped_pages, shape.page_tokens
        self._out: list[list[_Swap]] = [[] for _ in range(shards)]
        self._in: list[list[_Swap]] = [[] for _ in range(shards)]

    def __len__(self) -> int:
        """The number of pages."""
        return sum(map(_num_pages, (*self._out, *self._in)))

    def can_swap_out(self, shard: int, pages: int) -> bool:
        return _num_pages(self._out[shard]) + pages <= self._room

    def can_swap_in(self, shard: int, pages: int) -> bool:
        return _num_pages(self._in[shard]) + pages <= self._room

    def swap_out(self, shard: int, pages: Sequence[int]) -> SwappedPages:
        """Returns the content, which is empty until the dispatch is over."""
        content = SwappedPages(len(pages))
        self._out[shard].append(_Swap(tuple(pages), content))
        return content

    def swap_in(self, shard: int, pages: Sequence[int], content: SwappedPages, first: int) -> None:
        """Plans to copy what was swapped out into the cache. pages: where the content goes, from
        its page `first` on."""
        assert content.layers is not None and first + len(pages) == content.num_pages
        if pages:
            self._in[shard].append(_Swap(tuple(pages), content, first))

    def begin(self, cache: Cache, mesh: Mesh | None) -> tuple[Cache, Layers]:
        """Dispatches the swaps. Returns the cache, and what was copied out of it."""
        copied: Layers = []
        if any(self._out):
            copied = copy_out(cache, self._pages(self._out, filler=0))
        if any(self._in):
            layers = self._content()
            if mesh is not None:
                layers = [jax.device_put(rows, row_sharding(rows, mesh)) for rows in layers]
            cache = copy_in(cache, self._pages(self._in, filler=cache[0].num_pages), layers)
        return cache, copied

    def finish(self, copied: Layers, record: PageRecord | None) -> None:
        """Keeps what `begin` has copied, which is on the host by now. Dispatches finish in the
        order in which they began, and each one its swaps before its own experts."""
        for shard, swaps in enumerate(self._out):
            for tokens, swap in self._with_tokens(swaps):
                cut = jax.tree.map(lambda x, s=shard, t=tokens: x[s, ..., t, :].copy(), copied)
                swap.content.layers = cut
                if record is not None:
                    swap.content.expert_PbLK = record.of_pages(shard, swap.pages)
        if record is not None:
            for shard, swaps in enumerate(self._in):
                for swap in swaps:
                    expert_PbLK = swap.content.expert_PbLK
                    assert expert_PbLK is not None, "pages are swapped in with their experts"
                    record.put_pages(shard, swap.pages, expert_PbLK[swap.first :])

    def _pages(self, swaps: list[list[_Swap]], filler: int) -> np.ndarray:
        page_ZW = np.full((len(swaps), self._width(swaps)), filler, np.int32)
        for shard, each in enumerate(swaps):
            pages = [page for swap in each for page in swap.pages]
            page_ZW[shard, : len(pages)] = pages
        return page_ZW

    def _width(self, swaps: list[list[_Swap]]) -> int:
        """How many pages are copied of each shard, some of them for nothing."""
        most = max(map(_num_pages, swaps))
        return min(1 << (most - 1).bit_length(), self._room)

    def _content(self) -> Layers:
        """What is put in, each array [Z,G,T,H] or [Z,T,H]."""
        tokens = self._width(self._in) * self._page_tokens
        template = next(swap.content.layers for swaps in self._in for swap in swaps)
        layers = jax.tree.map(
            lambda x: np.zeros((len(self._in), *x.shape[:-2], tokens, x.shape[-1]), x.dtype),
            template,
        )
        for shard, swaps in enumerate(self._in):
            for where, swap in self._with_tokens(swaps):
                skipped = swap.first * self._page_tokens
                for new, old in zip(
                    *map(jax.tree.leaves, (layers, swap.content.layers)), strict=True
                ):
                    new[shard, ..., where, :] = old[..., skipped:, :]
        return layers

    def _with_tokens(self, swaps: list[_Swap]) -> Iterator[tuple[slice, _Swap]]:
        """Each swap of a shard with the place of its tokens among those of all its swaps."""
        at = 0
        for swap in swaps:
            end = at + len(swap.pages) * self._page_tokens
            yield slice(at, end), swap
            at = end


def _num_pages(swaps: list[_Swap]) -> int:
    return sum(len(swap.pages) for swap in swaps)

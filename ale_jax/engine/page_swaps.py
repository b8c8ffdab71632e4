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
from ale_jax.engine.state_swaps import States, StateSwaps
from ale_jax.model.cache import Rows, copy_in, copy_out, row_sharding
from ale_jax.model.memory import Cache
from ale_jax.model.state_memory import State

Layers = list[Rows]
Copied = tuple[Layers, States]  # out of the cache


class PageRecord(Protocol):
    """What goes with the pages: `dispatch.ExpertRecord`, for router replay."""

    def of_pages(self, shard: int, pages: Sequence[int]) -> np.ndarray: ...

    def put_pages(self, shard: int, pages: Sequence[int], expert_PbLK: np.ndarray) -> None: ...


@dataclasses.dataclass
class SwappedPages:
    """What some pages of one conversation held.

    layers: their arrays, each [G,T,H] or [T,H] for the T tokens of the pages. None until the
    dispatch that copies them is over. states: those of recurrent layers, until then none.
    expert_PbLK: what is recorded of experts, if that is wanted.
    """

    num_pages: int
    layers: Layers | None = None
    states: States = dataclasses.field(default_factory=list)
    expert_PbLK: np.ndarray | None = None

    def keep_states(self, states: States) -> None:
        self.states = states


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
        self._states = StateSwaps(shape.max_sequences, shards)

    def __len__(self) -> int:
        """The number of pages."""
        return sum(map(_num_pages, (*self._out, *self._in)))

    def can_swap_out(self, shard: int, pages: int) -> bool:
        return _num_pages(self._out[shard]) + pages <= self._room

    def can_swap_in(self, shard: int, pages: int) -> bool:
        return _num_pages(self._in[shard]) + pages <= self._room

    def swap_out(self, shard: int, slot: int, pages: Sequence[int]) -> SwappedPages:
        """Returns the content of the slot's pages, which is empty until the dispatch is over."""
        content = SwappedPages(len(pages))
        self._out[shard].append(_Swap(tuple(pages), content))
        self._states.swap_out(shard, slot, content.keep_states)
        return content

    def swap_in(
        self, shard: int, slot: int, pages: Sequence[int], content: SwappedPages, first: int
    ) -> None:
        """Plans to copy what was swapped out into the cache. pages: where the content goes, from
        its page `first` on. Only a conversation without a state may have all of them already."""
        assert content.layers is not None and first + len(pages) == content.num_pages
        if pages:
            self._in[shard].append(_Swap(tuple(pages), content, first))
            self._states.swap_in(shard, slot, content.states)

    def begin(self, cache: Cache, mesh: Mesh | None) -> tuple[Cache, Copied]:
        """Dispatches the swaps. Returns the cache, and what was copied out of it."""
        copied: Layers = []
        states = self._states.begin_out(cache)
        paged = [kept for kept in cache if not isinstance(kept, State)]
        if any(self._out):
            copied = copy_out(paged, self._pages(self._out, filler=0))
        if any(self._in):
            layers = self._content()
            if mesh is not None:
                layers = [jax.device_put(rows, row_sharding(rows, mesh)) for rows in layers]
            pages = self._pages(self._in, filler=paged[0].num_pages)
            filled = iter(copy_in(paged, pages, layers))
            cache = [each if isinstance(each, State) else next(filled) for each in cache]
        return self._states.begin_in(cache, mesh), (copied, states)

    def finish(self, copied: Copied, record: PageRecord | None) -> None:
        """Keeps what `begin` has copied, which is on the host by now. Dispatches finish in the
        order in which they began, and each one its swaps before its own experts."""
        pages, states = copied
        self._states.finish(states)
        for shard, swaps in enumerate(self._out):
            for tokens, swap in self._with_tokens(swaps):
                cut = jax.tree.map(lambda x, s=shard, t=tokens: x[s, ..., t, :].copy(), pages)
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

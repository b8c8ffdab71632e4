"""Pages that leave the cache for the host's memory, and come back bit by bit.

To read the tokens again instead would change the last bits of those that decode steps wrote.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Protocol

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from ale_jax.engine.engine_shape import EngineShape
from ale_jax.model.cache import Cache, LayerRows, copy_in, copy_out, place

Layers = list[LayerRows]


class PageRecord(Protocol):
    """What goes with the pages: `dispatch.ExpertRecord`, for router replay."""

    def of_pages(self, shard: int, pages: Sequence[int]) -> np.ndarray: ...

    def put_pages(self, shard: int, pages: Sequence[int], expert_PbLK: np.ndarray) -> None: ...


@dataclasses.dataclass
class PageCopy:
    """What some pages of one conversation held.

    layers: keys and values, each [G,T,H] for the T tokens of the pages. None until the dispatch
    that copies them is read. expert_PbLK: the record of the pages, if experts are recorded.
    """

    num_pages: int
    layers: Layers | None = None
    expert_PbLK: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class _Move:
    """pages: in the shard's own numbers; those of the copy from its page `first` on."""

    pages: tuple[int, ...]
    copy: PageCopy
    first: int = 0


class PageMoves:
    """What one dispatch moves before it computes: pages out of the cache, then others into it.

    Of each data shard there is room for `EngineShape.moved_pages`, in each direction, so that
    `--mode=plan` knows what the copies take. A program is compiled for each power of two.
    """

    def __init__(self, shape: EngineShape, shards: int):
        """shape: the sizes of each shard."""
        self._room, self._page_tokens = shape.moved_pages, shape.page_tokens
        self._out: list[list[_Move]] = [[] for _ in range(shards)]
        self._in: list[list[_Move]] = [[] for _ in range(shards)]

    def __len__(self) -> int:
        """The number of pages."""
        return sum(map(_num_pages, (*self._out, *self._in)))

    def has_room_out(self, shard: int, pages: int) -> bool:
        return _num_pages(self._out[shard]) + pages <= self._room

    def has_room_in(self, shard: int, pages: int) -> bool:
        return _num_pages(self._in[shard]) + pages <= self._room

    def take_out(self, shard: int, pages: Sequence[int]) -> PageCopy:
        """Returns the copy, which is empty until the dispatch is read."""
        copy = PageCopy(len(pages))
        self._out[shard].append(_Move(tuple(pages), copy))
        return copy

    def put_in(self, shard: int, pages: Sequence[int], copy: PageCopy, first: int) -> None:
        """pages: where the copy goes, from its page `first` on."""
        assert copy.layers is not None and first + len(pages) == copy.num_pages
        if pages:
            self._in[shard].append(_Move(tuple(pages), copy, first))

    def begin(self, cache: Cache, mesh: Mesh | None) -> tuple[Cache, Layers]:
        """Dispatches the moves. Returns the cache, and what was copied out of it."""
        copied: Layers = []
        if any(self._out):
            copied = copy_out(cache, self._pages(self._out, filler=0))
        if any(self._in):
            layers = self._content()
            if mesh is not None:
                layers = jax.device_put(layers, NamedSharding(mesh, place("BG", mesh)))
            cache = copy_in(cache, self._pages(self._in, filler=cache[0].num_pages), layers)
        return cache, copied

    def take_over(self, copied: Layers, record: PageRecord | None) -> None:
        """Keeps what `begin` has copied, which is on the host by now. Dispatches take over in the
        order in which they began, and each one its moves before its own experts."""
        for shard, moves in enumerate(self._out):
            for tokens, move in self._with_tokens(moves):
                cut = jax.tree.map(lambda x, s=shard, t=tokens: x[s, :, t].copy(), copied)
                move.copy.layers = cut
                if record is not None:
                    move.copy.expert_PbLK = record.of_pages(shard, move.pages)
        if record is not None:
            for shard, moves in enumerate(self._in):
                for move in moves:
                    record.put_pages(shard, move.pages, move.copy.expert_PbLK[move.first :])

    def _pages(self, moves: list[list[_Move]], filler: int) -> np.ndarray:
        page_XW = np.full((len(moves), self._width(moves)), filler, np.int32)
        for shard, each in enumerate(moves):
            pages = [page for move in each for page in move.pages]
            page_XW[shard, : len(pages)] = pages
        return page_XW

    def _width(self, moves: list[list[_Move]]) -> int:
        """How many pages are copied of each shard, some of them for nothing."""
        most = max(map(_num_pages, moves))
        return min(1 << (most - 1).bit_length(), self._room)

    def _content(self) -> Layers:
        """What is put in, each array [X,G,T,H]."""
        tokens = self._width(self._in) * self._page_tokens
        template = next(move.copy.layers for moves in self._in for move in moves)
        content = jax.tree.map(
            lambda x: np.zeros((len(self._in), x.shape[0], tokens, x.shape[2]), x.dtype), template
        )
        for shard, moves in enumerate(self._in):
            for where, move in self._with_tokens(moves):
                skipped = move.first * self._page_tokens
                for new, old in zip(
                    *map(jax.tree.leaves, (content, move.copy.layers)), strict=True
                ):
                    new[shard, :, where] = old[:, skipped:]
        return content

    def _with_tokens(self, moves: list[_Move]) -> Iterator[tuple[slice, _Move]]:
        """Each move of a shard with the place of its tokens among those of all its moves."""
        at = 0
        for move in moves:
            end = at + len(move.pages) * self._page_tokens
            yield slice(at, end), move
            at = end


def _num_pages(moves: list[_Move]) -> int:
    return sum(len(move.pages) for move in moves)

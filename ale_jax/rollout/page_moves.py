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

from ale_jax.model.cache import Cache, LayerRows, copy_in, copy_out, place
from ale_jax.rollout.engine_shape import EngineShape

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

    They are moved in rounds of one size, so that the programs are compiled once. In each round
    every data shard has room for the pages of a conversation of full length.
    """

    def __init__(self, shape: EngineShape, shards: int):
        self._room, self._page_tokens = shape.pages_per_sequence, shape.page_tokens
        self._out: list[list[_Move]] = [[] for _ in range(shards)]
        self._in: list[list[_Move]] = [[] for _ in range(shards)]

    def __len__(self) -> int:
        """The number of pages."""
        moves = [move for shard in (*self._out, *self._in) for move in shard]
        return sum(len(move.pages) for move in moves)

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

    def begin(self, cache: Cache, mesh: Mesh | None) -> tuple[Cache, list[Layers]]:
        """Dispatches the moves. Returns the cache, and what was copied out of it in each round."""
        copied = [copy_out(cache, page_XW) for page_XW in self._rounds(self._out, filler=0)]
        rounds = list(self._rounds(self._in, filler=cache[0].num_pages))
        content = self._content(len(rounds)) if rounds else []
        size = self._room * self._page_tokens
        for number, page_XW in enumerate(rounds):
            tokens = slice(number * size, (number + 1) * size)
            layers = jax.tree.map(lambda x, t=tokens: x[:, :, t], content)
            if mesh is not None:
                layers = jax.device_put(layers, NamedSharding(mesh, place("BG", mesh)))
            cache = copy_in(cache, page_XW, layers)
        return cache, copied

    def take_over(self, copied: list[Layers], record: PageRecord | None) -> None:
        """Keeps what `begin` has copied, which is on the host by now. Dispatches take over in the
        order in which they began, and each one its moves before its own experts."""
        whole = jax.tree.map(lambda *rounds: np.concatenate(rounds, axis=2), *copied or [[]])
        for shard, moves in enumerate(self._out):
            for tokens, move in self._with_tokens(moves):
                cut = jax.tree.map(lambda x, s=shard, t=tokens: x[s, :, t].copy(), whole)
                move.copy.layers = cut
                if record is not None:
                    move.copy.expert_PbLK = record.of_pages(shard, move.pages)
        if record is not None:
            for shard, moves in enumerate(self._in):
                for move in moves:
                    record.put_pages(shard, move.pages, move.copy.expert_PbLK[move.first :])

    def _rounds(self, moves: list[list[_Move]], filler: int) -> Iterator[np.ndarray]:
        """The pages of each round, [X,W]."""
        pages = [[page for move in shard for page in move.pages] for shard in moves]
        for start in range(0, max(map(len, pages)), self._room):
            page_XW = np.full((len(pages), self._room), filler, np.int32)
            for shard, each in enumerate(pages):
                part = each[start : start + self._room]
                page_XW[shard, : len(part)] = part
            yield page_XW

    def _content(self, rounds: int) -> Layers:
        """What is put in, each array [X,G,T,H] with the tokens of all rounds."""
        tokens = rounds * self._room * self._page_tokens
        template = next(move.copy.layers for moves in self._in for move in moves)
        whole = jax.tree.map(
            lambda x: np.zeros((len(self._in), x.shape[0], tokens, x.shape[2]), x.dtype), template
        )
        for shard, moves in enumerate(self._in):
            for where, move in self._with_tokens(moves):
                skipped = move.first * self._page_tokens
                for new, old in zip(*map(jax.tree.leaves, (whole, move.copy.layers)), strict=True):
                    new[shard, :, where] = old[:, skipped:]
        return whole

    def _with_tokens(self, moves: list[_Move]) -> Iterator[tuple[slice, _Move]]:
        """Each move of a shard with its tokens, counted through all rounds."""
        at = 0
        for move in moves:
            end = at + len(move.pages) * self._page_tokens
            yield slice(at, end), move
            at = end

"""The host arrays of one dispatch of the sampling program, and the record of its routing.

A dispatch has fixed shapes. For router replay, the experts that each token in the cache was routed
to are kept on the host.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ale_jax.engine.engine_shape import EngineShape
from ale_jax.engine.guiding import NextToken
from ale_jax.engine.page_moves import PageMoves
from ale_jax.engine.slots import CacheSlot, Chunk, Request
from ale_jax.model.generate import Burst, Chunks
from ale_jax.model.guides import Guides
from ale_jax.model.params import Params
from ale_jax.model.sampler import SlotState
from ale_jax.model.shape import PolicyShape


@dataclasses.dataclass(frozen=True)
class Dispatch:
    params: Params
    version: int
    page_SW: np.ndarray
    chunks: Chunks
    state: SlotState
    guides: Guides
    writing: Mapping[CacheSlot, Request]
    moves: PageMoves

    def writes_for(self, slot: CacheSlot) -> bool:
        """Whether it writes for the slot's present request."""
        return slot.request is not None and self.writing.get(slot) is slot.request


class ChunkBatches:
    """Chunks in the order of reading, in batches of one size each. In every batch each shard of the
    mesh has its own rows."""

    def __init__(self, shape: EngineShape, shards: int):
        self._shape = shape
        Q, R, T = shape.max_batches, shards * shape.prefill_rows, shape.prefill_tokens[-1]
        self._size_Q = np.zeros((Q,), np.int32)
        self._slot_QR = np.zeros((Q, R), np.int32)
        self._start_QR = np.zeros((Q, R), np.int32)
        self._count_QR = np.zeros((Q, R), np.int32)
        self._tokens_QRT = np.zeros((Q, R, T), np.int32)
        self._sizes: list[int] = []  # chunk size of each batch
        self._last = [(0, 0)] * shards  # per shard: batch of its last chunk, rows used there

    def __len__(self) -> int:
        return len(self._sizes)

    def has_room(self, shard: int, size: int) -> bool:
        return self._place(shard, size) is not None

    def add(self, shard: int, slot: int, chunk: Chunk) -> None:
        q, row = self._place(shard, chunk.size)
        if q == len(self._sizes):
            self._sizes.append(chunk.size)
            self._size_Q[q] = self._shape.prefill_tokens.index(chunk.size)
        self._last[shard] = q, row + 1
        r = shard * self._shape.prefill_rows + row
        self._slot_QR[q, r], self._start_QR[q, r] = slot, chunk.start
        self._count_QR[q, r] = len(chunk.ids)
        self._tokens_QRT[q, r, : len(chunk.ids)] = chunk.ids

    def arrays(self) -> Chunks:
        return Chunks(
            num_batches=np.int32(len(self._sizes)),
            size_Q=self._size_Q,
            slot_QR=self._slot_QR,
            tokens_QRT=self._tokens_QRT,
            start_QR=self._start_QR,
            count_QR=self._count_QR,
        )

    def _place(self, shard: int, size: int) -> tuple[int, int] | None:
        """Batch and row for the shard's next chunk, or None if there is no room. It never comes
        before the shard's last chunk, which it may depend on."""
        rows, (last, taken) = self._shape.prefill_rows, self._last[shard]
        for q in range(last, len(self._sizes)):
            row = taken if q == last else 0
            if self._sizes[q] == size and row < rows:
                return q, row
        fits = rows * (sum(self._sizes) + size) <= self._shape.prefill_budget
        return (len(self._sizes), 0) if fits else None


def page_table(slots: Iterable[CacheSlot], shape: EngineShape) -> np.ndarray:
    page_SW = np.zeros((shape.max_sequences, shape.pages_per_sequence), np.int32)
    for slot in slots:
        page_SW[slot.index, : len(slot.pages)] = slot.pages
    return page_SW


def slot_state(
    writing: Iterable[CacheSlot],
    num_slots: int,
    unread: Dispatch | None = None,
    guided: Mapping[int, Sequence[NextToken]] | None = None,
) -> SlotState:
    """The state of all slots. Those that are not in `writing` are idle. Those for which `unread`
    already writes go on from where it will leave them. guided: by index, what holds for the next
    tokens of slots that write these only."""
    S = num_slots
    state = SlotState(
        token_S=np.zeros((S,), np.int32),
        position_S=np.zeros((S,), np.int32),
        budget_S=np.zeros((S,), np.int32),
        key_S2=np.zeros((S, 2), np.uint32),
        temperature_S=np.ones((S,), np.float32),
        top_k_S=np.zeros((S,), np.int32),
        top_p_S=np.ones((S,), np.float32),
        min_p_S=np.zeros((S,), np.float32),
        goes_on_S=np.zeros((S,), np.bool_),
    )
    for slot in writing:
        i, request = slot.index, slot.request
        state.goes_on_S[i] = unread is not None and unread.writes_for(slot)
        state.token_S[i] = slot.tail[0]
        state.position_S[i] = slot.length
        state.budget_S[i] = len(guided[i]) if guided and i in guided else slot.budget
        state.key_S2[i] = request.key
        state.temperature_S[i] = request.sampling.temperature
        state.top_k_S[i] = request.sampling.top_k
        state.top_p_S[i] = request.sampling.top_p
        state.min_p_S[i] = request.sampling.min_p
    return state


class ExpertRecord:
    """The experts of each token in the cache, stored by page, as keys and values are: conversations
    that share a page of the cache share its record."""

    def __init__(self, shape: EngineShape, policy: PolicyShape, shards: int = 1):
        assert policy.is_moe, "a dense policy has nothing to record"
        self._page_tokens = shape.page_tokens
        # Of each shard.
        self._slots, self._pages = shape.max_sequences // shards, shape.pages // shards
        tokens = shape.pages * shape.page_tokens
        size = (tokens, policy.num_moe_layers, policy.experts_per_token)
        self._expert_MLK = np.full(size, -1, np.int16)

    def take_over(self, dispatch: Dispatch, burst: Burst) -> None:
        """Records what a dispatch put into the cache, including that of conversations that have
        ended in the meantime, because others may share their pages."""
        chunks = dispatch.chunks
        for batch, row in np.argwhere(chunks.count_QR[: chunks.num_batches] > 0):
            slot, start = chunks.slot_QR[batch, row], chunks.start_QR[batch, row]
            count = chunks.count_QR[batch, row]
            self._write(slot, dispatch.page_SW, start, burst.read_QRTLK[batch, row, :count])
        for slot in dispatch.writing:
            i, count = slot.index, (burst.token_nS[:, slot.index] >= 0).sum()
            self._write(i, dispatch.page_SW, burst.start_S[i], burst.expert_nSLK[:count, i])

    def read(self, slot: int, pages: Sequence[int], start: int, end: int) -> np.ndarray:
        """Experts of the slot's tokens from position `start` to before `end`, [T,L,K] int16."""
        return self._expert_MLK[self._places(slot, pages, start, end)]

    def of_pages(self, shard: int, pages: Sequence[int]) -> np.ndarray:
        """A copy of what is recorded of pages, [P,b,L,K]."""
        return self._by_page()[shard * self._pages + np.asarray(pages, np.int64)]

    def put_pages(self, shard: int, pages: Sequence[int], expert_PbLK: np.ndarray) -> None:
        self._by_page()[shard * self._pages + np.asarray(pages, np.int64)] = expert_PbLK

    def _by_page(self) -> np.ndarray:
        return self._expert_MLK.reshape(-1, self._page_tokens, *self._expert_MLK.shape[1:])

    def _write(self, slot: int, page_SW: np.ndarray, start: int, expert_TLK: np.ndarray) -> None:
        places = self._places(slot, page_SW[slot], start, start + len(expert_TLK))
        self._expert_MLK[places] = expert_TLK

    def _places(self, slot: int, pages: Sequence[int], start: int, end: int) -> np.ndarray:
        position_T = np.arange(start, end)
        first = slot // self._slots * self._pages  # page numbers count from the shard's first page
        page_T = first + np.asarray(pages, np.int64)[position_T // self._page_tokens]
        return page_T * self._page_tokens + position_T % self._page_tokens

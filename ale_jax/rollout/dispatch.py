"""What one dispatch of the sampling program is given, as arrays of fixed shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ale_jax.model.generate import Chunks
from ale_jax.model.params import Params
from ale_jax.model.sampler import SlotState
from ale_jax.rollout.engine_shape import EngineShape
from ale_jax.rollout.slots import CacheSlot, Chunk


@dataclasses.dataclass(frozen=True)
class Dispatch:
    params: Params
    version: int
    page_SW: np.ndarray
    chunks: Chunks
    state: SlotState
    writing: list[CacheSlot]


class ChunkBatches:
    """Chunks in the order in which they are read, in batches of one size each. In every batch each
    share of the mesh has rows of its own."""

    def __init__(self, shape: EngineShape, shares: int):
        self._shape = shape
        Q, R, T = shape.max_batches, shares * shape.prefill_rows, shape.prefill_tokens[-1]
        self._size_Q = np.zeros((Q,), np.int32)
        self._slot_QR = np.zeros((Q, R), np.int32)
        self._start_QR = np.zeros((Q, R), np.int32)
        self._count_QR = np.zeros((Q, R), np.int32)
        self._tokens_QRT = np.zeros((Q, R, T), np.int32)
        self._sizes: list[int] = []  # of the batches
        self._last = [(0, 0)] * shares  # of each share, the batch of its last chunk and rows there

    def __len__(self) -> int:
        return len(self._sizes)

    def has_room(self, share: int, size: int) -> bool:
        return self._place(share, size) is not None

    def add(self, share: int, slot: int, chunk: Chunk) -> None:
        q, row = self._place(share, chunk.size)
        if q == len(self._sizes):
            self._sizes.append(chunk.size)
            self._size_Q[q] = self._shape.prefill_tokens.index(chunk.size)
        self._last[share] = q, row + 1
        r = share * self._shape.prefill_rows + row
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

    def _place(self, share: int, size: int) -> tuple[int, int] | None:
        """Batch and row of the share's next chunk: never before its last one, which it may need."""
        rows, (last, taken) = self._shape.prefill_rows, self._last[share]
        for q in range(last, len(self._sizes)):
            row = taken if q == last else 0
            if self._sizes[q] == size and row < rows:
                return q, row
        fits = rows * (sum(self._sizes) + size) <= self._shape.prefill_budget
        return (len(self._sizes), 0) if fits else None


def page_table(slots: Sequence[CacheSlot], shape: EngineShape) -> np.ndarray:
    page_SW = np.zeros((shape.slots, shape.pages_per_slot), np.int32)
    for slot in slots:
        page_SW[slot.index, : len(slot.pages)] = slot.pages
    return page_SW


def slot_state(writing: Sequence[CacheSlot], num_slots: int) -> SlotState:
    """The others rest."""
    S = num_slots
    state = SlotState(
        token_S=np.zeros((S,), np.int32),
        position_S=np.zeros((S,), np.int32),
        budget_S=np.zeros((S,), np.int32),
        key_S2=np.zeros((S, 2), np.uint32),
        temperature_S=np.ones((S,), np.float32),
        top_k_S=np.zeros((S,), np.int32),
        top_p_S=np.ones((S,), np.float32),
    )
    for slot in writing:
        i, request = slot.index, slot.request
        state.token_S[i] = slot.tail[0]
        state.position_S[i] = slot.length
        state.budget_S[i] = slot.budget
        state.key_S2[i] = request.key
        state.temperature_S[i] = request.sampling.temperature
        state.top_k_S[i] = request.sampling.top_k
        state.top_p_S[i] = request.sampling.top_p
    return state

"""The host arrays of one dispatch of the sampling program, and the record of its routing.

A dispatch has fixed shapes. For router replay, the experts that each token in the cache was routed
to are kept on the host.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import jax
import numpy as np

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.engine import EngineShape
from ale_jax.engine.page_swaps import PageSwaps
from ale_jax.engine.request import Request, TokenConstraint
from ale_jax.engine.sequence import PrefillChunk, SequenceState
from ale_jax.model.decode import DecodeOutput
from ale_jax.model.drafts import Said
from ale_jax.model.generate import PrefillBatches
from ale_jax.model.guides import Guides, no_guides, num_words
from ale_jax.model.params import Params
from ale_jax.model.sampler import SlotState


@dataclasses.dataclass(frozen=True)
class Dispatch:
    """What one call of the sampling program is given, and the conversations that it decodes."""

    params: Params
    version: int
    page_SW: np.ndarray
    prefill: PrefillBatches
    state: SlotState
    guides: Guides
    decoding: Mapping[SequenceState, Request]
    swaps: PageSwaps
    said: Said | None = None

    def decodes(self, sequence: SequenceState) -> bool:
        """Returns whether the dispatch decodes for the slot's present request."""
        return sequence.request is not None and self.decoding.get(sequence) is sequence.request


class PrefillBatcher:
    """Prefill chunks in their order, in batches of one size each. In every batch each shard of the
    mesh has its own rows. is_recurrent: a batch has one chunk of a conversation at most, as the
    next one begins with the state behind it."""

    def __init__(self, shape: EngineShape, shards: int, is_recurrent: bool = False):
        self._shape, self._is_recurrent = shape, is_recurrent
        Q, R, T = shape.max_batches, shards * shape.prefill_rows, shape.prefill_tokens[-1]
        self._size_Q = np.zeros((Q,), np.int32)
        self._slot_QR = np.zeros((Q, R), np.int32)
        self._start_QR = np.zeros((Q, R), np.int32)
        self._count_QR = np.zeros((Q, R), np.int32)
        self._tokens_QRT = np.zeros((Q, R, T), np.int32)
        self._sizes: list[int] = []  # chunk size of each batch
        # Per shard: batch of its last chunk, rows used there, and slot.
        self._last = [(0, 0, -1)] * shards

    def __len__(self) -> int:
        return len(self._sizes)

    def has_room(self, shard: int, slot: int, size: int) -> bool:
        return self._place(shard, slot, size) is not None

    def add(self, shard: int, slot: int, chunk: PrefillChunk) -> None:
        place = self._place(shard, slot, chunk.size)
        assert place is not None, "ask `has_room` first"
        q, row = place
        if q == len(self._sizes):
            self._sizes.append(chunk.size)
            self._size_Q[q] = self._shape.prefill_tokens.index(chunk.size)
        self._last[shard] = q, row + 1, slot
        r = shard * self._shape.prefill_rows + row
        self._slot_QR[q, r], self._start_QR[q, r] = slot, chunk.start
        self._count_QR[q, r] = len(chunk.ids)
        self._tokens_QRT[q, r, : len(chunk.ids)] = chunk.ids

    def arrays(self) -> PrefillBatches:
        return PrefillBatches(
            num_batches=np.int32(len(self._sizes)),
            size_Q=self._size_Q,
            slot_QR=self._slot_QR,
            tokens_QRT=self._tokens_QRT,
            start_QR=self._start_QR,
            count_QR=self._count_QR,
        )

    def _place(self, shard: int, slot: int, size: int) -> tuple[int, int] | None:
        """Batch and row for the shard's next chunk, or None if there is no room. It never comes
        before the shard's last chunk, which it may depend on."""
        rows, (last, taken, before) = self._shape.prefill_rows, self._last[shard]
        first = last + (self._is_recurrent and slot == before)
        for q in range(first, len(self._sizes)):
            row = taken if q == last else 0
            if self._sizes[q] == size and row < rows:
                return q, row
        fits = rows * (sum(self._sizes) + size) <= self._shape.prefill_budget
        return (len(self._sizes), 0) if fits else None


def page_table(sequences: Iterable[SequenceState], shape: EngineShape) -> np.ndarray:
    page_SW = np.zeros((shape.max_sequences, shape.pages_per_sequence), np.int32)
    for sequence in sequences:
        page_SW[sequence.slot, : len(sequence.pages)] = sequence.pages
    return page_SW


def adapters_of(sequences: Iterable[SequenceState], num_slots: int) -> np.ndarray:
    """Returns the entry OF_SLOT of a dispatch's weights, of the sequences that have a slot."""
    adapter_S = np.zeros((num_slots,), np.int32)
    for sequence in sequences:
        adapter_S[sequence.slot] = sequence.adapter
    return adapter_S


def slot_state(
    decoding: Iterable[SequenceState],
    num_slots: int,
    in_flight: Dispatch | None = None,
    guided: Mapping[int, Sequence[TokenConstraint]] | None = None,
) -> SlotState:
    """Returns the state of all slots. Those of sequences that are not in `decoding` are idle. Those
    that `in_flight` already decodes continue from where it will leave them. guided: by slot, the
    constraints of the next tokens; no more are decoded there."""
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
        continues_S=np.zeros((S,), np.bool_),
    )
    for sequence in decoding:
        i, request = sequence.slot, sequence.current
        state.continues_S[i] = in_flight is not None and in_flight.decodes(sequence)
        state.token_S[i] = sequence.pending_ids[0]
        state.position_S[i] = sequence.length
        state.budget_S[i] = len(guided[i]) if guided and i in guided else sequence.budget
        state.key_S2[i] = request.key
        state.temperature_S[i] = request.sampling.temperature
        state.top_k_S[i] = request.sampling.top_k
        state.top_p_S[i] = request.sampling.top_p
        state.min_p_S[i] = request.sampling.min_p
    return state


def said_by(decoding: Iterable[SequenceState], shape: EngineShape) -> Said | None:
    """Returns what the drafts of a dispatch are made of; None if it makes none. Under a guide,
    which has its own way to look ahead, there are none."""
    if not shape.speculative_tokens:
        return None
    S = shape.max_sequences
    said = Said(
        id_SL=np.zeros((S, shape.max_sequence_length), np.int32),
        acceptance_S=np.zeros((S,), np.float32),
        drafts_S=np.zeros((S,), np.bool_),
    )
    for sequence in decoding:
        i, record = sequence.slot, sequence.draft_record
        assert record is not None, "every sequence has one, if there are drafts"
        record.id_L[sequence.length] = sequence.pending_ids[0]
        said.id_SL[i, : sequence.length + 1] = record.id_L[: sequence.length + 1]
        said.acceptance_S[i] = record.acceptance
        said.drafts_S[i] = sequence.current.options.guide is None
    return said


class GuideTable:
    """Makes the guides of a dispatch. While no slot has any, the same empty arrays stay on the
    devices."""

    def __init__(self, slots: int, vocab_size: int, steps: int, place: jax.sharding.Sharding):
        self._size_nSw = steps, slots, num_words(vocab_size)
        self._size_SV, self._place = (slots, vocab_size), place
        self._none: Guides = jax.device_put(no_guides(slots, vocab_size, steps), place)

    def arrays(
        self, guided: Mapping[int, Sequence[TokenConstraint]], wants_top: Sequence[int]
    ) -> Guides:
        """Returns the guides of a dispatch. guided: constraints of the next tokens, by slot.
        wants_top: the slots whose most probable tokens are wanted."""
        guides = self._none
        if wants_top:
            guides = dataclasses.replace(guides, wants_top_S=self._flags(wants_top))
        if masked := [n for n, (first, *_) in guided.items() if first.allowed_w is not None]:
            allowed_nSw = np.zeros(self._size_nSw, np.int32)
            for slot in masked:
                for step, each in enumerate(guided[slot]):
                    assert each.allowed_w is not None, "all tokens of a reply are masked, or none"
                    allowed_nSw[step, slot, : len(each.allowed_w)] = each.allowed_w
            guides = dataclasses.replace(
                guides, is_masked_S=self._flags(masked), allowed_nSw=allowed_nSw
            )
        if biased := [n for n, (first, *_) in guided.items() if first.bias_V is not None]:
            bias_SV = np.zeros(self._size_SV, np.float32)
            for slot in biased:
                (only,) = guided[slot]
                bias_SV[slot] = only.bias_V
            guides = dataclasses.replace(guides, is_biased_S=self._flags(biased), bias_SV=bias_SV)
        return jax.device_put(guides, self._place) if guides is not self._none else guides

    def _flags(self, where: Sequence[int]) -> np.ndarray:
        flags_S = np.zeros((self._size_SV[0],), np.bool_)
        flags_S[where] = True
        return flags_S


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
        self._expert_pLK = np.full(size, -1, np.int16)

    def record(self, dispatch: Dispatch, output: DecodeOutput) -> None:
        """Records what a dispatch put into the cache, including that of conversations that have
        ended in the meantime, because others may share their pages."""
        prefill = dispatch.prefill
        for batch, row in np.argwhere(prefill.count_QR[: prefill.num_batches] > 0):
            assert output.prefill_expert_QRTLK is not None, "a prefill tells its experts"
            slot, start = int(prefill.slot_QR[batch, row]), int(prefill.start_QR[batch, row])
            expert_TLK = np.asarray(output.prefill_expert_QRTLK[batch, row])
            count = int(prefill.count_QR[batch, row])
            self._write(slot, dispatch.page_SW, start, expert_TLK[:count])
        if not dispatch.decoding:
            return
        assert output.start_S is not None and output.expert_nSLK is not None
        for sequence in dispatch.decoding:
            i = sequence.slot
            expert_TLK = np.asarray(output.expert_nSLK)[np.asarray(output.token_nS[:, i]) >= 0, i]
            self._write(i, dispatch.page_SW, int(output.start_S[i]), expert_TLK)

    def experts(self, slot: int, pages: Sequence[int], start: int, end: int) -> np.ndarray:
        """Returns the experts of the slot's tokens from position `start` to before `end`, [T,L,K]
        int16."""
        return self._expert_pLK[self._places(slot, pages, start, end)]

    def of_pages(self, shard: int, pages: Sequence[int]) -> np.ndarray:
        """Returns a copy of what is recorded of pages, [P,b,L,K]."""
        return self._by_page()[shard * self._pages + np.asarray(pages, np.int64)]

    def put_pages(self, shard: int, pages: Sequence[int], expert_PbLK: np.ndarray) -> None:
        self._by_page()[shard * self._pages + np.asarray(pages, np.int64)] = expert_PbLK

    def _by_page(self) -> np.ndarray:
        return self._expert_pLK.reshape(-1, self._page_tokens, *self._expert_pLK.shape[1:])

    def _write(self, slot: int, page_SW: np.ndarray, start: int, expert_TLK: np.ndarray) -> None:
        places = self._places(slot, page_SW[slot], start, start + len(expert_TLK))
        self._expert_pLK[places] = expert_TLK

    def _places(self, slot: int, pages: Sequence[int], start: int, end: int) -> np.ndarray:
        position_T = np.arange(start, end)
        first = slot // self._slots * self._pages  # page numbers count from the shard's first page
        page_T = first + np.asarray(pages, np.int64)[position_T // self._page_tokens]
        return page_T * self._page_tokens + position_T % self._page_tokens

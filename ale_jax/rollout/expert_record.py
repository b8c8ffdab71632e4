"""Which experts each token in the cache was sent to, kept on the host for router replay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ale_jax.model.generate import Burst
from ale_jax.model.shape import PolicyShape
from ale_jax.rollout.dispatch import Dispatch
from ale_jax.rollout.engine_shape import EngineShape


class ExpertRecord:
    """By page, as keys and values are: who shares a page of the cache shares its record."""

    def __init__(self, shape: EngineShape, policy: PolicyShape, shares: int = 1):
        assert policy.is_moe, "a dense policy has nothing to record"
        self._page_tokens = shape.page_tokens
        self._slots, self._pages = shape.slots // shares, shape.pages // shares  # of each share
        tokens = shape.pages * shape.page_tokens
        size = (tokens, policy.num_moe_layers, policy.experts_per_token)
        self._expert_MLK = np.full(size, -1, np.int16)

    def take_over(self, dispatch: Dispatch, burst: Burst) -> None:
        """What a dispatch put into the cache, also for conversations that were ended meanwhile:
        others may share what they read."""
        chunks, state = dispatch.chunks, dispatch.state
        for batch, row in np.argwhere(chunks.count_QR[: chunks.num_batches] > 0):
            slot, start = chunks.slot_QR[batch, row], chunks.start_QR[batch, row]
            count = chunks.count_QR[batch, row]
            self._write(slot, dispatch.page_SW, start, burst.read_QRTLK[batch, row, :count])
        for slot in dispatch.writing:
            i, count = slot.index, (burst.token_nS[:, slot.index] >= 0).sum()
            self._write(i, dispatch.page_SW, state.position_S[i], burst.expert_nSLK[:count, i])

    def read(self, slot: int, pages: Sequence[int], start: int, end: int) -> np.ndarray:
        """Of the slot's tokens from position `start` to before `end`, [T,L,K] int16."""
        return self._expert_MLK[self._places(slot, pages, start, end)]

    def _write(self, slot: int, page_SW: np.ndarray, start: int, expert_TLK: np.ndarray) -> None:
        places = self._places(slot, page_SW[slot], start, start + len(expert_TLK))
        self._expert_MLK[places] = expert_TLK

    def _places(self, slot: int, pages: Sequence[int], start: int, end: int) -> np.ndarray:
        position_T = np.arange(start, end)
        first = slot // self._slots * self._pages  # the numbers of pages count from the share's
        page_T = first + np.asarray(pages, np.int64)[position_T // self._page_tokens]
        return page_T * self._page_tokens + position_T % self._page_tokens

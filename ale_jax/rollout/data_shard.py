"""The host's view of one shard of the mesh: its slots, their pages, and the slot that reads
context."""

from __future__ import annotations

from collections.abc import Sequence

from ale_jax.rollout.dispatch import ExpertRecord
from ale_jax.rollout.engine_shape import EngineShape
from ale_jax.rollout.pages import PageKeys, PagePool
from ale_jax.rollout.slots import CacheSlot, Request


class DataShard:
    def __init__(self, number: int, shape: EngineShape, record: ExpertRecord | None = None):
        """shape: the sizes of each shard (`EngineShape.shard`)."""
        first = number * shape.max_sequences
        self.number, self._shape = number, shape
        self.slots = [
            CacheSlot(first + i, shape.max_sequence_length, record)
            for i in range(shape.max_sequences)
        ]
        self.pages = PagePool(shape.pages)
        self.reading: CacheSlot | None = None  # the slot that is read first in the next dispatch

    def can_take(self, keys: Sequence[bytes]) -> bool:
        """Whether there is a free slot, and enough pages for a conversation that begins with
        `keys`."""
        return self._free_slot() is not None and self.pages.can_give(
            keys, self._shape.pages_per_sequence
        )

    def knows(self, keys: Sequence[bytes]) -> int:
        """How many of the keys, counted from the first, name pages that were read or are being
        read."""
        being_read = self.reading.prefix_keys if self.reading else []
        # A key identifies everything before it, too, so that common keys are the first ones.
        return max(self.pages.known(keys), len(set(keys) & set(being_read)))

    def take(
        self, request: Request, keys: list[bytes], version: int | None
    ) -> tuple[CacheSlot, int]:
        """Gives a conversation a slot and all its pages. Returns the slot, and how many of the
        conversation's first ids the pages already hold."""
        slot, taken = self._free_slot(), self.pages.take(keys, self._shape.pages_per_sequence)
        assert slot is not None and taken is not None, "ask `can_take` first"
        slot.conversation, (slot.pages, known) = request.conversation, taken
        slot.prefix_keys, slot.prefix_version = keys, version
        if self._shape.share_replies:
            slot.page_keys = PageKeys(self._shape.page_tokens, version)
        slot.begin(request, self._shape.prefill_tokens)
        if slot.unread:
            slot.skip(known * self._shape.page_tokens)
            return slot, known * self._shape.page_tokens
        return slot, 0

    def _free_slot(self) -> CacheSlot | None:
        return next((s for s in self.slots if s.conversation is None), None)


def best_shard(shards: Sequence[DataShard], keys: Sequence[bytes]) -> DataShard | None:
    """The shard for a conversation that begins with `keys`; None if it fits nowhere yet.

    The members of a group go where the first one went, and wait for it to be read. Other
    conversations prefer a shard in which no context is being read, then the one that knows most of
    their prefix, then the one with the most free pages.
    """

    def merit(shard: DataShard) -> tuple[bool, bool, int, int]:
        known = shard.knows(keys)
        return known == len(keys), shard.reading is None, known, shard.pages.free

    return max((s for s in shards if s.can_take(keys)), key=merit, default=None)

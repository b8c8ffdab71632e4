"""The host's view of one share of the mesh: its slots, their pages, and who is read there."""

from __future__ import annotations

from collections.abc import Sequence

from ale_jax.rollout.engine_shape import EngineShape
from ale_jax.rollout.expert_record import ExpertRecord
from ale_jax.rollout.pages import PagePool
from ale_jax.rollout.slots import CacheSlot, Request


class Share:
    def __init__(self, number: int, shape: EngineShape, record: ExpertRecord | None = None):
        """shape: what each share has (`EngineShape.share`)."""
        first = number * shape.slots
        self.number, self._shape = number, shape
        self.slots = [CacheSlot(first + i, shape.slot_tokens, record) for i in range(shape.slots)]
        self.pages = PagePool(shape.pages)
        self.reading: CacheSlot | None = None  # who is read first in the next dispatch

    def can_take(self, keys: Sequence[bytes]) -> bool:
        """Whether there is a slot, and all pages of a conversation that begins with `keys`."""
        return self._free_slot() is not None and self.pages.can_give(
            keys, self._shape.pages_per_slot
        )

    def knows(self, keys: Sequence[bytes]) -> int:
        """How many of the keys, from the first on, name what has been read or is just being."""
        being_read = self.reading.prefix_keys if self.reading else []
        # A key stands for all that comes before it, too.
        return max(self.pages.known(keys), len(set(keys) & set(being_read)))

    def take(
        self, request: Request, keys: list[bytes], version: int | None
    ) -> tuple[CacheSlot, int]:
        """Gives a conversation a slot and all its pages; of its first ids, so many are known."""
        slot, taken = self._free_slot(), self.pages.take(keys, self._shape.pages_per_slot)
        assert slot is not None and taken is not None, "ask `can_take` first"
        slot.conversation, (slot.pages, known) = request.conversation, taken
        slot.prefix_keys, slot.prefix_version = keys, version
        slot.begin(request, self._shape.prefill_tokens)
        if slot.unread:
            slot.skip(known * self._shape.page_tokens)
            return slot, known * self._shape.page_tokens
        return slot, 0

    def _free_slot(self) -> CacheSlot | None:
        return next((s for s in self.slots if s.conversation is None), None)


def best_share(shares: Sequence[Share], keys: Sequence[bytes]) -> Share | None:
    """Where a conversation that begins with `keys` goes; None if it fits nowhere yet.

    The members of a group go where the first one went, and wait for it to be read. Others go where
    nobody is just read, and there where most of their beginning is known, then most is free.
    """

    def merit(share: Share) -> tuple[bool, bool, int, int]:
        known = share.knows(keys)
        return known == len(keys), share.reading is None, known, share.pages.free

    return max((s for s in shares if s.can_take(keys)), key=merit, default=None)

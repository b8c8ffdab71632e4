"""The host's view of one shard of the mesh: the conversations that have a place in it, their pages,
and the one that reads context."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from ale_jax.engine.engine_shape import EngineShape
from ale_jax.engine.pages import PagePool
from ale_jax.engine.slots import CacheSlot, Request


@dataclasses.dataclass(frozen=True)
class Demand:
    """What a request needs to go on.

    slot: of its conversation, which may have a place. pages: as many more, and what the first of
    them should hold already (`keys`). joins: whether it is waiting, and does not write yet.
    """

    slot: CacheSlot
    request: Request
    pages: int
    keys: Sequence[bytes] = ()
    joins: bool = True


@dataclasses.dataclass(frozen=True)
class Claims:
    """Who may not be preempted. waiting: by conversation, the requests that wait, some of which are
    the next ones of conversations that have a place. fixed: whose content is changed by the
    dispatch that is being planned."""

    waiting: dict[int, Request]
    fixed: Collection[CacheSlot]

    def of(self, slot: CacheSlot) -> Request | None:
        return slot.request or self.waiting.get(slot.conversation)


class DataShard:
    def __init__(self, number: int, shape: EngineShape):
        """shape: the sizes of each shard (`EngineShape.shard`)."""
        self.number, self._shape = number, shape
        self._first = number * shape.max_sequences
        self._places: list[CacheSlot | None] = [None] * shape.max_sequences
        self.pages = PagePool(shape.pages)
        self.reading: CacheSlot | None = None  # the slot that is read first in the next dispatch

    @property
    def slots(self) -> list[CacheSlot]:
        """Those that have a place, in the order of their rows."""
        return [slot for slot in self._places if slot is not None]

    def knows(self, keys: Sequence[bytes]) -> int:
        """How many of the keys, counted from the first, name pages that were read or are being
        read."""
        being_read = self.reading.prefix_keys if self.reading else []
        # A key identifies everything before it, too, so that common keys are the first ones.
        return max(self.pages.known(keys), len(set(keys) & set(being_read)))

    def give(self, demand: Demand) -> int:
        """Gives the slot its pages, and a place if it has none. Returns how many of the pages
        already hold what the keys name."""
        slot, taken = demand.slot, self.pages.take(demand.keys, demand.pages)
        assert taken is not None, "ask `victims` first"
        if not slot.has_place:
            row = self._places.index(None)
            self._places[row], slot.index, slot.has_place = slot, self._first + row, True
        pages, known = taken
        slot.pages += pages
        return known

    def take_back(self, slot: CacheSlot) -> None:
        """Its place and pages go to others."""
        self.pages.release(slot.pages)
        self._places[slot.index - self._first] = None
        slot.pages, slot.has_place = [], False
        if self.reading is slot:
            self.reading = None

    def victims(self, demand: Demand, claims: Claims) -> list[CacheSlot] | None:
        """Who has to be preempted so that the demand can be met: nobody if it can be met as it is;
        None if that would not suffice.

        The first ones are conversations without a request, the one that has been idle for longest
        before all others; then those whose requests rank behind the demand's, the last one first.
        """
        if self._has_room(demand, ()):
            return []
        candidates = self._candidates(demand, claims)
        if not self._has_room(demand, candidates):
            return None
        count = 1
        while not self._has_room(demand, candidates[:count]):
            count += 1
        return candidates[:count]

    def _candidates(self, demand: Demand, claims: Claims) -> list[CacheSlot]:
        own = demand.request.rank
        others = [s for s in self.slots if s is not demand.slot and s not in claims.fixed]
        idle = [slot for slot in others if claims.of(slot) is None]
        behind = [slot for slot in others if (by := claims.of(slot)) and by.rank > own]
        idle.sort(key=lambda slot: slot.idle_since)
        behind.sort(key=lambda slot: claims.of(slot).rank, reverse=True)
        return idle + behind

    def _has_room(self, demand: Demand, without: Sequence[CacheSlot]) -> bool:
        if not (demand.slot.has_place or without or None in self._places):
            return False
        count = demand.pages + (self._promised(demand) if demand.joins else 0)
        return self.pages.can_give(demand.keys, count, [slot.pages for slot in without])

    def _promised(self, demand: Demand) -> int:
        """A page for each conversation that ranks before the demand and may need one soon, so that
        who joins is not preempted in the next dispatch."""
        return sum(
            slot.may_grow(self._shape.page_tokens)
            for slot in self.slots
            if slot.request is not None and slot.request.rank < demand.request.rank
        )


def best_shard(
    shards: Sequence[DataShard], demand: Demand, claims: Claims
) -> tuple[DataShard, list[CacheSlot]] | None:
    """The shard for a conversation that has no place, and who is to be preempted for it there; None
    if it fits nowhere yet.

    It goes where nobody has to be preempted, if it can. The members of a group go where the first
    one went, and wait for it to be read. Other conversations prefer a shard in which no context is
    being read, then the one that knows most of their prefix, then the one with the most free pages.
    """

    def merit(found: tuple[DataShard, list[CacheSlot]]) -> tuple[bool, bool, bool, int, int]:
        shard, victims = found
        known = shard.knows(demand.keys)
        is_member = known == len(demand.keys)
        return not victims, is_member, shard.reading is None, known, shard.pages.free

    asked = [(shard, shard.victims(demand, claims)) for shard in shards]
    able = [(shard, victims) for shard, victims in asked if victims is not None]
    return max(able, key=merit, default=None)

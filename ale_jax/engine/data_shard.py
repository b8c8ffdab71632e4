"""The host's view of one shard of the mesh: the conversations that have a slot in it, their pages,
and the one that is being prefilled."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from ale_jax.config.engine import EngineShape
from ale_jax.engine.pages import PagePool
from ale_jax.engine.request import Request
from ale_jax.engine.sequence import SequenceState


@dataclasses.dataclass(frozen=True)
class Demand:
    """What a request needs to go on.

    sequence: of its conversation, which may have a slot. pages: as many more, and what the first of
    them should hold already (`keys`). joins: whether it is waiting, and is not decoded yet.
    """

    sequence: SequenceState
    request: Request
    pages: int
    keys: Sequence[bytes] = ()
    joins: bool = True


@dataclasses.dataclass(frozen=True)
class Claims:
    """Who may not be preempted. waiting: by conversation, the requests that wait, some of which are
    the next ones of conversations that have a slot. fixed: whose content is changed by the
    dispatch that is being planned."""

    waiting: dict[int, Request]
    fixed: Collection[SequenceState]

    def of(self, sequence: SequenceState) -> Request | None:
        return sequence.request or self.waiting.get(sequence.conversation)


class DataShard:
    """Gives the slots and pages of one shard of the mesh to conversations."""

    def __init__(self, number: int, shape: EngineShape):
        """shape: the sizes of each shard (`EngineShape.shard`)."""
        self.number, self._shape = number, shape
        self._first = number * shape.max_sequences
        self._slots: list[SequenceState | None] = [None] * shape.max_sequences
        self.pages = PagePool(shape.pages)
        self.prefilling: SequenceState | None = None  # comes first in the next dispatch

    @property
    def running(self) -> list[SequenceState]:
        """Those that have a slot, in the order of their slots."""
        return [sequence for sequence in self._slots if sequence is not None]

    def num_cached(self, keys: Sequence[bytes]) -> int:
        """Returns how many of the keys, counted from the first, name pages that are cached or being
        prefilled."""
        in_prefill = self.prefilling.prefix_keys if self.prefilling else []
        # A key identifies everything before it, too, so that common keys are the first ones.
        return max(self.pages.num_cached(keys), len(set(keys) & set(in_prefill)))

    def allocate(self, demand: Demand) -> int:
        """Gives the sequence its pages, and a slot if it has none. Returns how many of the pages
        already hold what the keys name."""
        sequence, taken = demand.sequence, self.pages.allocate(demand.keys, demand.pages)
        assert taken is not None, "ask `victims` first"
        if not sequence.has_slot:
            row = self._slots.index(None)
            self._slots[row], sequence.slot, sequence.has_slot = sequence, self._first + row, True
        pages, num_cached = taken
        sequence.pages += pages
        return num_cached

    def release(self, sequence: SequenceState) -> None:
        """Releases the slot and the pages of a sequence for others."""
        self.pages.release(sequence.pages)
        self._slots[sequence.slot - self._first] = None
        sequence.pages, sequence.has_slot = [], False
        if self.prefilling is sequence:
            self.prefilling = None

    def victims(self, demand: Demand, claims: Claims) -> list[SequenceState] | None:
        """Returns who has to be preempted so that the demand can be met: nobody if it can be met as
        it is; None if that would not suffice.

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

    def _candidates(self, demand: Demand, claims: Claims) -> list[SequenceState]:
        own = demand.request.rank
        others = [s for s in self.running if s is not demand.sequence and s not in claims.fixed]
        claimed = [(sequence, claims.of(sequence)) for sequence in others]
        idle = [sequence for sequence, request in claimed if request is None]
        ranked = [(request.rank, sequence) for sequence, request in claimed if request]
        behind = [(rank, sequence) for rank, sequence in ranked if rank > own]
        idle.sort(key=lambda sequence: sequence.idle_since)
        behind.sort(key=lambda each: each[0], reverse=True)
        return idle + [sequence for _, sequence in behind]

    def _has_room(self, demand: Demand, without: Sequence[SequenceState]) -> bool:
        if not (demand.sequence.has_slot or without or None in self._slots):
            return False
        released = [sequence.pages for sequence in without]
        # Who joins looks at all others: only if there is not a page for each of them in any case.
        most = demand.pages + demand.joins * len(self.running)
        if self.pages.can_allocate(demand.keys, most, released):
            return True
        count = demand.pages + (self._promised(demand) if demand.joins else 0)
        return self.pages.can_allocate(demand.keys, count, released)

    def _promised(self, demand: Demand) -> int:
        """A page for each conversation that ranks before the demand and may need one soon, so that
        who joins is not preempted in the next dispatch."""
        return sum(
            sequence.may_grow(self._shape.page_tokens)
            for sequence in self.running
            if sequence.request is not None and sequence.request.rank < demand.request.rank
        )


def best_shard(
    shards: Sequence[DataShard], demand: Demand, claims: Claims
) -> tuple[DataShard, list[SequenceState]] | None:
    """Returns the shard for a conversation that has no slot, and who is to be preempted for it
    there; None if it fits nowhere yet.

    It goes where nobody has to be preempted, if it can. The members of a group go where the first
    one went, and wait for its prefill. Other conversations prefer a shard that prefills
    nothing, then the one that has most of their prefix cached, then the one with the most free
    pages.
    """

    def merit(found: tuple[DataShard, list[SequenceState]]) -> tuple[bool, bool, bool, int, int]:
        shard, victims = found
        cached = shard.num_cached(demand.keys)
        is_member = cached == len(demand.keys)
        return not victims, is_member, shard.prefilling is None, cached, shard.pages.free

    asked = [(shard, shard.victims(demand, claims)) for shard in shards]
    able = [(shard, victims) for shard, victims in asked if victims is not None]
    return max(able, key=merit, default=None)

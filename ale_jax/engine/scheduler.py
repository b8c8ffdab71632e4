"""Decides which conversations take part in the engine's next dispatch, and who has which pages.

Requests are served in the order of their ranks: by priority, then as they came. A conversation gets
a place with the pages for its context and its first burst, and takes more before each burst. If
there are none, others are preempted: conversations that wait for their next request, then those
whose requests rank behind (`DataShard.victims`). What their pages held waits on the host.

Somebody always goes on. Let r be the request that ranks before all others.
1. It is never a victim: it has a request, and no other ranks before it.
2. It gets what it lacks. A shard has enough pages for any conversation (`EngineShape`), all others
   in the shard may be its victims, and no pages are promised to anyone before it. Those that write
   in a dispatch that is not read yet take no part in the next one, and are victims after that. Each
   dispatch moves at least one victim's pages, however many there are. Who reads context has the
   pages for all of it, so that r's turn to read comes, too.
3. Each dispatch that it takes part in reads a chunk of its context or writes a burst. So it ends,
   and another one is first.
A request thus waits for those before it, of which there are finitely many, unless requests of a
higher priority never cease to come.

A burst is written as a whole or not at all, so that bursts begin at positions that do not depend on
the other conversations: where a burst begins is seen in the last bits of its numbers.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections import deque

from ale_jax.engine.data_shard import Claims, DataShard, Demand, best_shard
from ale_jax.engine.dispatch import ChunkBatches, Dispatch
from ale_jax.engine.engine_shape import EngineShape
from ale_jax.engine.page_moves import PageMoves
from ale_jax.engine.pages import PageKeys
from ale_jax.engine.slots import CacheSlot, Request, RoutingReader


@dataclasses.dataclass
class EngineStats:
    """Counts since the start. busy_seconds: time that the loop's thread spent on dispatches."""

    sampled_tokens: int = 0
    prefilled_tokens: int = 0
    shared_tokens: int = 0  # prompt tokens found in pages of earlier prompts
    bursts: int = 0
    busy_seconds: float = 0.0
    preemptions: int = 0  # conversations that lost their place to others
    moved_pages: int = 0  # copied to the host for that, or back


@dataclasses.dataclass
class Plan:
    """Of one dispatch. version: of its weights. unread: the dispatch before, if that has begun and
    is not read yet. writing: the slots that can write.

    fixed: slots that have read, or got a place, in this plan, so that their pages cannot be copied
    before it. held: slots that take no part, because they are to be preempted.
    """

    version: int
    unread: Dispatch | None
    batches: ChunkBatches
    moves: PageMoves
    writing: list[CacheSlot] = dataclasses.field(default_factory=list)
    fixed: set[CacheSlot] = dataclasses.field(default_factory=set)
    held: set[CacheSlot] = dataclasses.field(default_factory=set)


class Scheduler:
    """Not thread-safe. record: of experts, that replies are given."""

    def __init__(
        self,
        shape: EngineShape,
        shards: int,
        stats: EngineStats,
        record: RoutingReader | None = None,
    ):
        """ValueError if slots or pages cannot be divided among the shards."""
        self._shape, self._stats, self._record = shape, stats, record
        self._shard_shape = shape.shard(shards)
        self._shards = [DataShard(n, self._shard_shape) for n in range(shards)]
        self._turns = deque(self._shards)  # as they come in turn to be read
        self._of: dict[int, CacheSlot] = {}  # by conversation
        self._waiting: list[Request] = []  # by rank; for a place, or for their turn to be read

    @property
    def slots(self) -> list[CacheSlot]:
        """Those that have a place."""
        return [slot for shard in self._shards for slot in shard.slots]

    def add(self, request: Request) -> None:
        """The request waits for its turn."""
        if request.conversation not in self._of:
            longest = self._shape.max_sequence_length
            slot = CacheSlot(request.conversation, longest, self._record)
            self._of[request.conversation] = slot
        bisect.insort(self._waiting, request, key=lambda each: each.rank)

    def end(self, conversation: int, error: Exception) -> None:
        """Its requests fail with `error`, and what it has goes to others."""
        slot = self._of.pop(conversation, None)
        if slot is None:
            return
        slot.fail(error)
        if slot.has_place:
            self._shard_of(slot).take_back(slot)
        for request in [each for each in self._waiting if each.conversation == conversation]:
            self._waiting.remove(request)
            request.fail(error)

    def fail_all(self, error: Exception) -> None:
        """All requests fail with `error`. Nothing is planned after that."""
        for slot in self._of.values():
            slot.fail(error)
        for request in self._waiting:
            request.fail(error)
        self._of.clear()
        self._waiting.clear()

    def plan(self, version: int, unread: Dispatch | None) -> Plan:
        """Gives places and pages for the next dispatch, which has to follow."""
        shape, shards = self._shape, len(self._shards)
        moves = PageMoves(self._shard_shape, shards)
        plan = Plan(version, unread, ChunkBatches(shape, shards), moves)
        self._grow(plan)
        self._read_into(plan)
        plan.writing = [slot for slot in self.slots if self._can_write(slot, plan)]
        self._stats.moved_pages += len(plan.moves)
        return plan

    def offer_pages(self, slot: CacheSlot, version: int) -> None:
        """Offers the full pages that have keys to later conversations with the same beginning,
        provided that one version of the weights has read and written all of them."""
        if slot.prefix_version != self._key_version(version):
            slot.forget_keys()
        self._name_pages(slot)

    def _name_pages(self, slot: CacheSlot) -> None:
        pages = self._shard_of(slot).pages
        full = slot.pages[: slot.length // self._shape.page_tokens]
        for page, key in zip(full, slot.prefix_keys, strict=False):
            pages.name(page, key)

    def _can_write(self, slot: CacheSlot, plan: Plan) -> bool:
        return (
            _is_ready(slot, plan.unread, self._shape.decode_steps)
            and slot not in plan.held
            and self._lacks(slot, slot.request, plan) <= 0
        )

    def _grow(self, plan: Plan) -> None:
        """Those who write take the pages of their next burst."""
        steps = self._shape.decode_steps
        lacking = [
            slot
            for slot in self.slots
            if _is_ready(slot, plan.unread, steps) and self._lacks(slot, slot.request, plan) > 0
        ]
        for slot in sorted(lacking, key=lambda slot: slot.request.rank):
            if slot.has_place and slot not in plan.held:  # else one before it needs what it has
                shard = self._shard_of(slot)
                lacks = self._lacks(slot, slot.request, plan)
                demand = Demand(slot, slot.request, lacks, joins=False)
                victims = shard.victims(demand, self._claims(plan))
                if victims is not None and self._preempt(victims, plan):
                    shard.give(demand)

    def _read_into(self, plan: Plan) -> None:
        """Fills the plan's batches. Each shard takes one conversation after another, so that a
        prefix shared with an earlier one is read before the later one's first chunk."""
        self._turns.rotate()  # so that every shard gets its turn
        for shard in self._turns:
            if shard.reading:
                self._read_on(shard, plan)
        while slot := self._next_to_join(plan):
            if slot.unread:
                shard = self._shard_of(slot)
                shard.reading = slot
                self._read_on(shard, plan)

    def _read_on(self, shard: DataShard, plan: Plan) -> None:
        slot, batches = shard.reading, plan.batches
        while slot.unread and batches.has_room(shard.number, slot.next_size):
            chunk = slot.read()
            batches.add(shard.number, slot.index, chunk)
            plan.fixed.add(slot)
            self._stats.prefilled_tokens += len(chunk.ids)
            self.offer_pages(slot, plan.version)
        if not slot.unread:
            shard.reading = None

    def _next_to_join(self, plan: Plan) -> CacheSlot | None:
        """The slot of the first request that waits and can go on, with what it needs. Where one
        finds no room, no later one takes any."""
        claims = self._claims(plan)
        for request in self._waiting:
            slot = self._of[request.conversation]
            reads = slot.request is None or slot.unread > 0
            if reads and all(shard.reading for shard in self._where(slot)):
                continue
            if slot.copy is not None and slot.copy.layers is None:
                return None  # until the dispatch that copies it is read
            demand = self._demand(request, slot, plan)
            found = best_shard(self._where(slot), demand, claims)
            if found is None:
                return None
            shard, victims = found
            if reads and shard.reading:
                continue
            lost = slot.copy.num_pages - shard.pages.known(demand.keys) if slot.copy else 0
            if not plan.moves.has_room_in(shard.number, lost) or not self._preempt(victims, plan):
                return None
            self._waiting.remove(request)
            self._join(demand, shard, plan)
            return slot
        return None

    def _where(self, slot: CacheSlot) -> list[DataShard]:
        """Where the slot can go on: where it has its place, or anywhere."""
        return [self._shard_of(slot)] if slot.has_place else self._shards

    def _demand(self, request: Request, slot: CacheSlot, plan: Plan) -> Demand:
        pages, keys = max(self._lacks(slot, request, plan), 0), []
        if slot.length:
            # What it has lost may still be there, or there again.
            keys = slot.prefix_keys[: slot.length // self._shape.page_tokens]
        elif slot.request is request or not slot.tail:  # it is the first prompt
            version = self._key_version(plan.version)
            keys = request.prefix_keys(self._shape.page_tokens, version)
        return Demand(slot, request, pages, [] if slot.has_place else keys[:pages])

    def _join(self, demand: Demand, shard: DataShard, plan: Plan) -> None:
        slot = demand.slot
        known, is_new = shard.give(demand), slot.length == 0
        plan.fixed.add(slot)
        if is_new:
            slot.prefix_keys, slot.prefix_version = demand.keys, self._key_version(plan.version)
            if self._shape.share_replies:
                slot.page_keys = PageKeys(self._shape.page_tokens, slot.prefix_version)
        if slot.request is None:
            slot.begin(demand.request, self._shape.prefill_tokens)
        if is_new and slot.unread:
            slot.skip(known * self._shape.page_tokens)
            self._stats.shared_tokens += slot.length
        if slot.copy is not None:
            copy, slot.copy = slot.copy, None
            lost = slot.pages[known : copy.num_pages]
            plan.moves.put_in(shard.number, lost, copy, known)
            self._name_pages(slot)

    def _preempt(self, victims: list[CacheSlot], plan: Plan) -> bool:
        """Whether all have lost their places. If one of them writes in a dispatch that is not read
        yet, the host does not know how much; and only so many pages are moved at once. They take no
        part in this dispatch then, and lose their places in the next one."""
        if plan.unread and any(slot in plan.unread.writing for slot in victims):
            plan.held.update(victims)
            return False
        for number, slot in enumerate(victims):
            shard = self._shard_of(slot)
            filled = slot.pages[: self._pages(slot.length)]
            if not plan.moves.has_room_out(shard.number, len(filled)):
                plan.held.update(victims[number:])
                return False
            slot.copy = plan.moves.take_out(shard.number, filled) if filled else None
            shard.take_back(slot)
            if slot.request is not None:
                self.add(slot.request)
            self._stats.preemptions += 1
        return True

    def _lacks(self, slot: CacheSlot, request: Request, plan: Plan) -> int:
        """Pages for what the request still reads and for its next burst, beyond those it has."""
        in_flight = plan.unread is not None and plan.unread.writes_for(slot)
        steps = self._shape.decode_steps * (1 + in_flight)
        return self._pages(slot.tokens_with(request, steps)) - len(slot.pages)

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self._shape.page_tokens)

    def _claims(self, plan: Plan) -> Claims:
        return Claims({each.conversation: each for each in self._waiting}, plan.fixed)

    def _shard_of(self, slot: CacheSlot) -> DataShard:
        return self._shards[slot.index * len(self._shards) // self._shape.max_sequences]

    def _key_version(self, version: int) -> int | None:
        return None if self._shape.share_across_versions else version


def _is_ready(slot: CacheSlot, unread: Dispatch | None, steps: int) -> bool:
    """Whether the slot's next token can be written, if it has the pages."""
    if slot.request is None or slot.unread:
        return False
    if unread is None or not unread.writes_for(slot):
        return True
    # A guide must know what was written. The others may also have stopped by then, which their
    # budget on the device knows.
    return slot.request.company.guide is None and slot.budget > steps

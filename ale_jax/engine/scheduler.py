"""Decides which conversations take part in the engine's next dispatch, and who has which pages.

Requests are served in the order of their ranks: by priority, then as they came. A conversation gets
a slot with the pages for its context and its first decode steps, and takes more before each
dispatch. If there are none, others are preempted: conversations that wait for their next request,
then those whose requests rank behind (`DataShard.victims`). Their pages are swapped out.

Some conversation always goes on. Let r be the request that ranks before all others.
1. It is never a victim: it has a request, and no other ranks before it.
2. It gets what it lacks. A shard has enough pages for any conversation (`EngineShape`), all others
   in the shard may be its victims, and no pages are promised to anyone before it. Those that are
   decoded by the dispatch in flight take no part in the next one, and are victims after that. Each
   dispatch swaps out at least one victim, however many there are. A conversation in prefill has the
   pages for all of it, so that r's turn for prefill comes, too.
3. Each dispatch that it takes part in prefills a chunk of its context or decodes tokens. So it
   ends, and another one is first.
A request thus waits for those before it, of which there are finitely many, unless requests of a
higher priority never cease to come.

A dispatch runs all decode steps of a conversation or none, so that dispatches begin at positions
that do not depend on the other conversations: where one begins is seen in the last bits of its
numbers.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections import deque
from collections.abc import Iterator

from ale_jax.config.engine import EngineShape
from ale_jax.engine.data_shard import Claims, DataShard, Demand, best_shard
from ale_jax.engine.dispatch import Dispatch, PrefillBatcher
from ale_jax.engine.page_swaps import PageSwaps
from ale_jax.engine.pages import PageKeys, Weights
from ale_jax.engine.request import Request
from ale_jax.engine.sequence import DraftRecord, RoutingRecord, SequenceState


@dataclasses.dataclass
class EngineStats:
    """Counts since the start. busy_seconds: time that the loop's thread spent on dispatches."""

    sampled_tokens: int = 0
    prefilled_tokens: int = 0
    shared_tokens: int = 0  # prompt tokens found in the prefix cache
    decode_dispatches: int = 0  # dispatches that decoded tokens
    busy_seconds: float = 0.0
    preemptions: int = 0  # conversations that lost their slot to others
    swapped_pages: int = 0  # out to the host, and back in
    decode_passes: int = 0  # through the policy, of all conversations, that drew tokens
    drafted_tokens: int = 0  # that were verified (model/drafts.py)
    accepted_tokens: int = 0  # of these, those that were right

    def count_passes(self, passes: int, drafted: int, accepted: int) -> None:
        """Adds those of a dispatch."""
        self.decode_passes += passes
        self.drafted_tokens += drafted
        self.accepted_tokens += accepted


@dataclasses.dataclass
class Plan:
    """What the next dispatch is made of. version: of its weights. in_flight: the dispatch before,
    if its output is still to come. decoding: the sequences that decode steps are run for.

    fixed: sequences that are prefilled, or get a slot, in this plan, so that their pages cannot be
    swapped out before it. held: sequences that take no part, because they are to be preempted.
    """

    version: int
    in_flight: Dispatch | None
    prefill: PrefillBatcher
    swaps: PageSwaps
    decoding: list[SequenceState] = dataclasses.field(default_factory=list)
    fixed: set[SequenceState] = dataclasses.field(default_factory=set)
    held: set[SequenceState] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(frozen=True)
class Moved:
    """A conversation that goes on with another engine. adapter: as of `Engine.open`. sequence: what
    it has, on the host; None before its first request. requests: those that wait, by rank."""

    adapter: int
    sequence: SequenceState | None
    requests: list[Request]


class Scheduler:
    """Not thread-safe. record: of experts, that replies are given. is_recurrent: of the policy."""

    def __init__(
        self,
        shape: EngineShape,
        shards: int,
        stats: EngineStats,
        record: RoutingRecord | None = None,
        is_recurrent: bool = False,
    ):
        """ValueError if slots or pages cannot be divided among the shards."""
        self._shape, self._stats, self._record = shape, stats, record
        self._is_recurrent = is_recurrent
        self._shard_shape = shape.shard(shards)
        self._shards = [DataShard(n, self._shard_shape) for n in range(shards)]
        self._turns = deque(self._shards)  # as they come in turn for prefill
        self._of: dict[int, SequenceState] = {}  # by conversation
        self._waiting: list[Request] = []  # by rank; for a slot, or for prefill

    @property
    def running(self) -> list[SequenceState]:
        """Those that have a slot."""
        return [sequence for shard in self._shards for sequence in shard.running]

    def add(self, request: Request) -> None:
        """Adds a request, which waits for its turn."""
        if request.conversation not in self._of:
            longest = self._shape.max_sequence_length
            sequence = self._of[request.conversation] = SequenceState(
                request.conversation, longest, self._record, self._is_recurrent, request.adapter
            )
            if self._shape.speculative_tokens:
                sequence.draft_record = DraftRecord(longest)
        bisect.insort(self._waiting, request, key=lambda each: each.rank)

    def end(self, conversation: int, error: Exception) -> None:
        """Ends a conversation: its requests fail with `error`, and what it has goes to others."""
        sequence = self._of.pop(conversation, None)
        if sequence is None:
            return
        sequence.fail(error)
        if sequence.has_slot:
            self._shard_of(sequence).release(sequence)
        for request in [each for each in self._waiting if each.conversation == conversation]:
            self._waiting.remove(request)
            request.fail(error)

    def fail_all(self, error: Exception) -> None:
        """Fails all requests with `error`. Nothing is planned after that."""
        for sequence in self._of.values():
            sequence.fail(error)
        for request in self._waiting:
            request.fail(error)
        self._of.clear()
        self._waiting.clear()

    def plan(self, version: int, in_flight: Dispatch | None) -> Plan:
        """Gives slots and pages for the next dispatch, which has to follow."""
        shape, shards = self._shape, len(self._shards)
        swaps = PageSwaps(self._shard_shape, shards)
        plan = Plan(version, in_flight, PrefillBatcher(shape, shards, self._is_recurrent), swaps)
        self._give_decode_pages(plan)
        self._schedule_prefill(plan)
        plan.decoding = [sequence for sequence in self.running if self._can_decode(sequence, plan)]
        self._stats.swapped_pages += len(plan.swaps)
        return plan

    def plan_leaving(self, version: int, in_flight: Dispatch | None) -> Plan:
        """Swaps out whom the next dispatch can; nobody is prefilled or decoded."""
        shards = len(self._shards)
        swaps = PageSwaps(self._shard_shape, shards)
        batches = PrefillBatcher(self._shape, shards, self._is_recurrent)
        plan = Plan(version, in_flight, batches, swaps)
        self._preempt(self.running, plan)
        self._stats.swapped_pages += len(swaps)
        return plan

    @property
    def has_left(self) -> bool:
        """Whether all that conversations have is on the host."""
        swapped = [each.swapped for each in self._of.values() if each.swapped is not None]
        return not self.running and all(each.layers is not None for each in swapped)

    def hand_over(self, conversation: int, adapter: int) -> Moved:
        """Gives a conversation away, once all have left."""
        requests = [each for each in self._waiting if each.conversation == conversation]
        for request in requests:
            self._waiting.remove(request)
        return Moved(adapter, self._of.pop(conversation, None), requests)

    def take_over(self, moved: Moved, conversation: int, numbers: Iterator[int]) -> None:
        """Goes on with a conversation of another engine. conversation: its number here. numbers:
        the next ones of requests, in which those that are taken over come last."""
        if moved.sequence is not None:
            moved.sequence.move(conversation, self._record)
            self._of[conversation] = moved.sequence
        for request in moved.requests:
            request.conversation, request.number = conversation, next(numbers)
            self.add(request)

    def share_pages(self, sequence: SequenceState, version: int) -> None:
        """Offers the full pages that have keys to later conversations with the same beginning,
        provided that one version of the weights has computed all of them."""
        if sequence.prefix_weights != self._weights_of(sequence, version):
            sequence.forget_keys()
        self._register_pages(sequence)

    def _register_pages(self, sequence: SequenceState) -> None:
        pages = self._shard_of(sequence).pages
        full = sequence.pages[: sequence.length // self._shape.page_tokens]
        for page, key in zip(full, sequence.prefix_keys, strict=False):
            pages.register(page, key)

    def _can_decode(self, sequence: SequenceState, plan: Plan) -> bool:
        return (
            self._is_ready(sequence, plan.in_flight)
            and sequence not in plan.held
            and self._missing_pages(sequence, sequence.current, plan) <= 0
        )

    def _give_decode_pages(self, plan: Plan) -> None:
        """Sequences that are decoded take the pages of their next decode steps."""
        lacking = [
            sequence
            for sequence in self.running
            if self._is_ready(sequence, plan.in_flight)
            and self._missing_pages(sequence, sequence.current, plan) > 0
        ]
        for sequence in sorted(lacking, key=lambda sequence: sequence.current.rank):
            if sequence.has_slot and sequence not in plan.held:  # else an earlier one took them
                shard = self._shard_of(sequence)
                lacks = self._missing_pages(sequence, sequence.current, plan)
                demand = Demand(sequence, sequence.current, lacks, joins=False)
                victims = shard.victims(demand, self._claims(plan))
                if victims is not None and self._preempt(victims, plan):
                    shard.allocate(demand)

    def _schedule_prefill(self, plan: Plan) -> None:
        """Fills the plan's prefill batches. Each shard takes one conversation after another, so
        that a prefix shared with an earlier one is cached before the later one's first chunk."""
        self._turns.rotate()  # so that every shard gets its turn
        for shard in self._turns:
            if shard.prefilling:
                self._prefill(shard, shard.prefilling, plan)
        while sequence := self._next_to_schedule(plan):
            if sequence.num_to_prefill:
                shard = self._shard_of(sequence)
                shard.prefilling = sequence
                self._prefill(shard, sequence, plan)

    def _prefill(self, shard: DataShard, sequence: SequenceState, plan: Plan) -> None:
        prefill = plan.prefill
        while sequence.num_to_prefill and prefill.has_room(
            shard.number, sequence.slot, sequence.next_chunk_size
        ):
            chunk = sequence.next_prefill_chunk()
            prefill.add(shard.number, sequence.slot, chunk)
            plan.fixed.add(sequence)
            self._stats.prefilled_tokens += len(chunk.ids)
            self.share_pages(sequence, plan.version)
        if not sequence.num_to_prefill:
            shard.prefilling = None

    def _next_to_schedule(self, plan: Plan) -> SequenceState | None:
        """The sequence of the first request that waits and can go on, with what it needs. Where one
        finds no room, no later one takes any."""
        claims = self._claims(plan)
        for request in self._waiting:
            sequence = self._of[request.conversation]
            needs_prefill = sequence.request is None or sequence.num_to_prefill > 0
            if needs_prefill and all(shard.prefilling for shard in self._where(sequence)):
                continue
            if sequence.swapped is not None and sequence.swapped.layers is None:
                return None  # until it is on the host
            demand = self._demand(request, sequence, plan)
            found = best_shard(self._where(sequence), demand, claims)
            if found is None:
                return None
            shard, victims = found
            if needs_prefill and shard.prefilling:
                continue
            lost = (
                sequence.swapped.num_pages - shard.pages.num_cached(demand.keys)
                if sequence.swapped
                else 0
            )
            if not plan.swaps.can_swap_in(shard.number, lost) or not self._preempt(victims, plan):
                return None
            self._waiting.remove(request)
            self._schedule(demand, shard, plan)
            return sequence
        return None

    def _where(self, sequence: SequenceState) -> list[DataShard]:
        """Where the sequence can go on: where it has its slot, or anywhere."""
        return [self._shard_of(sequence)] if sequence.has_slot else self._shards

    def _demand(self, request: Request, sequence: SequenceState, plan: Plan) -> Demand:
        pages = max(self._missing_pages(sequence, request, plan), 0)
        keys: list[bytes] = []
        if self._is_recurrent:
            pass  # a page that others computed is of no use without the state behind it
        elif sequence.length:
            # What it has lost may still be there, or there again.
            keys = sequence.prefix_keys[: sequence.length // self._shape.page_tokens]
        elif sequence.request is request or not sequence.pending_ids:  # it is the first prompt
            weights = self._weights_of(sequence, plan.version)
            keys = request.prefix_keys(self._shape.page_tokens, weights)
        return Demand(sequence, request, pages, [] if sequence.has_slot else keys[:pages])

    def _schedule(self, demand: Demand, shard: DataShard, plan: Plan) -> None:
        sequence = demand.sequence
        known, is_new = shard.allocate(demand), sequence.length == 0
        plan.fixed.add(sequence)
        if is_new:
            weights = self._weights_of(sequence, plan.version)
            sequence.prefix_keys, sequence.prefix_weights = list(demand.keys), weights
            if self._shape.share_replies and not self._is_recurrent:
                sequence.page_keys = PageKeys(self._shape.page_tokens, weights)
        if sequence.request is None:
            sequence.begin(demand.request, self._shape.prefill_tokens)
        if is_new and sequence.num_to_prefill:
            sequence.skip_cached(known * self._shape.page_tokens)
            self._stats.shared_tokens += sequence.length
        if sequence.swapped is not None:
            swapped, sequence.swapped = sequence.swapped, None
            lost = sequence.pages[known : swapped.num_pages]
            plan.swaps.swap_in(shard.number, sequence.slot, lost, swapped, known)
            self._register_pages(sequence)

    def _preempt(self, victims: list[SequenceState], plan: Plan) -> bool:
        """Whether all have lost their slots. If the dispatch in flight decodes one of them, the
        host does not know how many tokens; and only so many pages are swapped at once. They take no
        part in this dispatch then, and lose their slots in the next one."""
        if plan.in_flight and any(sequence in plan.in_flight.decoding for sequence in victims):
            plan.held.update(victims)
            return False
        for number, sequence in enumerate(victims):
            shard = self._shard_of(sequence)
            filled = sequence.pages[: self._pages(sequence.length)]
            if not plan.swaps.can_swap_out(shard.number, len(filled)):
                plan.held.update(victims[number:])
                return False
            sequence.swapped = (
                plan.swaps.swap_out(shard.number, sequence.slot, filled) if filled else None
            )
            shard.release(sequence)
            if sequence.request is not None:
                self.add(sequence.request)
            self._stats.preemptions += 1
        return True

    def _missing_pages(self, sequence: SequenceState, request: Request, plan: Plan) -> int:
        """Pages for the rest of its prefill and its next decode steps, beyond those it has."""
        is_decoding = plan.in_flight is not None and plan.in_flight.decodes(sequence)
        steps = self._shape.dispatch_tokens * (1 + is_decoding)
        return self._pages(sequence.tokens_with(request, steps)) - len(sequence.pages)

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self._shape.page_tokens)

    def _claims(self, plan: Plan) -> Claims:
        return Claims({each.conversation: each for each in self._waiting}, plan.fixed)

    def _shard_of(self, sequence: SequenceState) -> DataShard:
        return self._shards[sequence.slot * len(self._shards) // self._shape.max_sequences]

    def _weights_of(self, sequence: SequenceState, version: int) -> Weights:
        return Weights(None if self._shape.share_across_versions else version, sequence.adapter)

    def _is_ready(self, sequence: SequenceState, in_flight: Dispatch | None) -> bool:
        """Whether the sequence's next token can be decoded, if it has the pages."""
        if sequence.request is None or sequence.num_to_prefill:
            return False
        if in_flight is None or not in_flight.decodes(sequence):
            return True
        # A guide must know what was decoded, and a state must not go on behind the end that a stop
        # checker finds. The others may also have stopped by then, which their budget on the device
        # knows.
        options = sequence.request.options
        known = options.guide is None and not (self._is_recurrent and options.stop_checker)
        return known and sequence.budget > self._shape.decode_steps

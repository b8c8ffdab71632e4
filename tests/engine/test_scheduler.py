"""Places and pages, without a model: who is served when, and what the pages hold meanwhile.

The device is played by arrays that hold, at each place of the cache, whose token of which position
lies there. So every dispatch can be checked for what it would read.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict, deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale_jax.engine import page_moves
from ale_jax.engine.dispatch import Dispatch, page_table
from ale_jax.engine.guiding import Company
from ale_jax.engine.scheduler import EngineStats, Scheduler
from ale_jax.engine.slots import Request, Written
from ale_jax.model.cache import LayerPages, LayerRows
from ale_jax.model.sampler import Sampling
from tests.engine.shapes import engine_shape

SIZES = {"max_sequence_length": 40, "page_tokens": 4, "prefill_tokens": (4, 8), "prefill_budget": 8}
NEVER = 10_000  # dispatches
STOP = 7


@dataclasses.dataclass(frozen=True)
class Turn:
    """pause: dispatches until it is asked for, after the reply before. ends: whether the
    conversation is ended while this reply is being sampled, and after how many dispatches."""

    read: int
    write: int
    pause: int
    ends: int | None


TURNS = st.builds(
    Turn,
    st.integers(1, 24),
    st.integers(1, 20),
    st.integers(0, 6),
    st.one_of(st.none(), st.none(), st.integers(0, 9)),
)
TALKS = st.lists(
    st.tuples(st.lists(TURNS, min_size=1, max_size=3), st.integers(-1, 1), st.booleans()),
    min_size=1,
    max_size=8,
)


class Played:
    """The engine's loop with a device that knows whose tokens it holds."""

    def __init__(self, shape, shards, ahead):
        self.shape, self.ahead, self.shards = shape, ahead, shards
        self.stats = EngineStats()
        self.scheduler = Scheduler(shape, shards, self.stats)
        size = (1, shape.pages, shape.page_tokens, 1)
        self.cache = [LayerPages(np.full(size, -1.0), np.full(size, -1.0))]
        self.begun = deque()
        # By conversation: how long the group's prompt is, and what its pages have to hold.
        self.shared, self.held = {}, defaultdict(list)
        self.version = 0

    def dispatch(self):
        """One turn of the loop. Whether anything was done."""
        unread = self.begun[0][0] if self.begun else None
        plan = self.scheduler.plan(self.version, unread)
        writing = {slot: slot.request for slot in plan.writing}
        chunks = plan.batches.arrays()
        begins = bool(len(plan.batches) or len(plan.moves) or writing)
        if begins:
            table = page_table(self.scheduler.slots, self.shape)
            sent = Dispatch(None, plan.version, table, chunks, None, None, writing, plan.moves)
            self.begun.append((sent, *self._run(sent, unread)))
        if self.begun and (not begins or len(self.begun) > self.ahead):
            self._take_over(*self.begun.popleft())
            return True
        return begins or bool(plan.fixed)

    def _run(self, sent, unread):
        self.cache, copied = sent.moves.begin(self.cache, None)
        self._read(sent)
        return self._write(sent, unread), copied

    def _put(self, sent, slot, start, count):
        """Computes `count` tokens from position `start` on, which attend to all before."""
        place = slot.index * self.shards // self.shape.max_sequences
        position = np.arange(start + count)
        page = place * (self.shape.pages // self.shards)
        page = page + sent.page_SW[slot.index][position // self.shape.page_tokens]
        offset, held = position % self.shape.page_tokens, self.held[slot.conversation]
        if len(held) < start:  # its first pages were known
            held += self._names(slot, slot.prefix_version, len(held), start)
        found = self.cache[0].k_GPbH[0, page[:start], offset[:start], 0]
        np.testing.assert_array_equal(found, held[:start])
        held[start:] = self._names(slot, sent.version, start, start + count)
        for array in (self.cache[0].k_GPbH, self.cache[0].v_GPbH):
            array[0, page[start:], offset[start:], 0] = held[start:]

    def _names(self, slot, version, start, end):
        """Tokens of a group's common prompt have the same names, others are named by their owner,
        and all by the weights' version."""
        shared, position = self.shared[slot.conversation], np.arange(start, end)
        own = 1000 * (slot.conversation + 1) + position
        return (np.where(position < shared, position, own) + version / 100).tolist()

    def _read(self, sent):
        slots = {slot.index: slot for slot in self.scheduler.slots}
        chunks = sent.chunks
        for q, r in np.argwhere(chunks.count_QR[: chunks.num_batches] > 0):
            slot = slots[chunks.slot_QR[q, r]]
            self._put(sent, slot, chunks.start_QR[q, r], chunks.count_QR[q, r])

    def _write(self, sent, unread):
        written = {}
        for slot in sent.writing:
            start, budget = slot.length, slot.budget
            if unread is not None and unread.writes_for(slot):
                start, budget = start + self.shape.decode_steps, budget - self.shape.decode_steps
            assert budget > 0
            count = min(budget, self.shape.decode_steps)
            self._put(sent, slot, start, count)
            written[slot] = count
        return written

    def _take_over(self, sent, written, copied):
        sent.moves.take_over(copied, None)
        for slot in sent.writing:
            if sent.writes_for(slot):
                tokens = np.full((self.shape.decode_steps,), -1)
                tokens[: written[slot]] = 100 + slot.conversation
                none = np.zeros(self.shape.decode_steps)
                own = slot.well_drawn(Written(tokens, none, none, none, none))
                slot.write(own, sent.version, (STOP,))
                if slot.page_keys is not None:
                    self.scheduler.offer_pages(slot, sent.version)


@pytest.fixture(scope="module", autouse=True)
def arrays():
    """Instead of copies on devices, of arrays in which shards follow each other."""

    def flat(page_XW, num_pages):
        each = num_pages // len(page_XW)
        return np.where(page_XW < each, page_XW + np.arange(len(page_XW))[:, None] * each, -1)

    def copy_out(cache, page_XW):
        (layer,) = cache
        where = flat(page_XW, layer.k_GPbH.shape[1])
        rows = [x[0, where].reshape(len(where), 1, -1, 1) for x in (layer.k_GPbH, layer.v_GPbH)]
        return [LayerRows(*rows)]

    def copy_in(cache, page_XW, layers):
        ((layer,), (rows,)) = cache, layers
        where = flat(page_XW, layer.k_GPbH.shape[1])
        for x, new in ((layer.k_GPbH, rows.k_BGMH), (layer.v_GPbH, rows.v_BGMH)):
            new = new.reshape(*where.shape, x.shape[2])
            x[0, where[where >= 0], :, 0] = new[where >= 0]
        return cache

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_moves, "copy_out", copy_out)
        patch.setattr(page_moves, "copy_in", copy_in)
        yield


@dataclasses.dataclass
class Talk:
    """A conversation that asks for its turns one after the other."""

    name: int
    turns: list[Turn]
    priority: int
    length: int = 0  # of all that was read and written
    since: int = 0  # dispatches since the request or the reply
    request: Request | None = None

    def step(self, played, numbers):
        """Whether it is over."""
        if self.request is None:
            if self.since < self.turns[0].pause:
                self.since += 1
                return False
            self.request, self.since = self._ask(played, next(numbers)), 0
            return False
        turn, self.since = self.turns[0], self.since + 1
        if turn.ends is not None and self.since > turn.ends:
            played.scheduler.end(self.name, RuntimeError("ended"))
            assert self.request.future.done()
            return True
        if not self.request.future.done():
            return False
        reply = self.request.future.result()
        room = played.shape.max_sequence_length - self.length - turn.read
        assert len(reply.ids) == max(min(turn.write, room), 0)
        assert reply.stop == ("length" if turn.write <= room else "context_full")
        self.length += turn.read + len(reply.ids)
        del self.turns[0]
        self.request, self.since = None, 0
        if not self.turns:
            played.scheduler.end(self.name, RuntimeError("ended"))
        return not self.turns

    def _ask(self, played, number):
        ids = np.full((self.turns[0].read,), 10 + self.name, np.int32)
        if not self.length:
            ids[: played.shared[self.name]] = 5
        company, key = Company(priority=self.priority), np.zeros(2, np.uint32)
        turn = self.turns[0]
        request = Request(self.name, ids, turn.write, Sampling(), key, company, number)
        played.scheduler.add(request)
        return request


@pytest.mark.parametrize("replies", [False, True], ids=["", "replies"])
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("ahead", [False, True], ids=["", "ahead"])
@given(talks=TALKS, rows=st.integers(1, 4), spare=st.integers(0, 15), every=st.integers(1, 30))
@settings(max_examples=150, deadline=None)
def test_everybody_is_served_and_finds_what_it_has_read_and_written(
    ahead, shards, replies, talks, rows, spare, every
):
    """With as few as the pages of one conversation of full length, in one row, on each shard; and
    with other weights, or the first ones again, after `every` dispatches."""
    sizes = {"max_sequences": rows * shards, "pages": (10 + spare) * shards}
    shape = engine_shape(**SIZES, **sizes, dispatch_ahead=ahead, share_replies=replies)
    played, numbers = Played(shape, shards, ahead), itertools.count()
    open_ones = []
    for name, (turns, priority, is_member) in enumerate(talks):
        played.shared[name] = min(turns[0].read, 20) if is_member else 0
        open_ones.append(Talk(name, list(turns), priority))
    first, since = None, 0
    for turn in range(NEVER):
        played.version = turn // every % 2
        open_ones = [talk for talk in open_ones if not talk.step(played, numbers)]
        went_on = played.dispatch()
        waiting = [talk.request for talk in open_ones if talk.request]
        unanswered = [each for each in waiting if not each.future.done()]
        assert went_on or not unanswered, "requests wait, and nothing is dispatched"
        best = min(unanswered, key=lambda each: each.rank, default=None)
        first, since = (best, since + 1) if best is first else (best, 0)
        # Its own chunks and bursts, those of who reads before it, and as much again in flight.
        assert best is None or since <= 2 * (5 + 5 + 5), "who ranks first makes progress"
        if not open_ones and not played.begun:
            break
    assert not open_ones
    for shard in played.scheduler._shards:
        assert shard.slots == [] and shard.pages.take([], shape.pages // shards)
    assert not played.scheduler._waiting

"""Slots and pages, without a model: who is served when, and what the pages hold meanwhile.

The device is played by arrays that hold, at each place of the cache, whose token of which position
lies there. So every dispatch can be checked for what it would attend to.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict, deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale_jax.config.engine import Sampling
from ale_jax.engine import page_swaps
from ale_jax.engine.dispatch import Dispatch, page_table
from ale_jax.engine.request import Request, RequestOptions
from ale_jax.engine.scheduler import EngineStats, Scheduler
from ale_jax.engine.sequence import DecodedTokens
from ale_jax.model.cache import LayerPages, LayerRows
from tests.engine.shapes import engine_shape

pytestmark = pytest.mark.heavy

SIZES = {"max_sequence_length": 40, "page_tokens": 4, "prefill_tokens": (4, 8), "prefill_budget": 8}
NEVER = 10_000  # dispatches
STOP = 7


@dataclasses.dataclass(frozen=True)
class Turn:
    """pause: dispatches until it is asked for, after the reply before. ends: whether the
    conversation is ended while this reply is being sampled, and after how many dispatches."""

    num_new: int
    max_tokens: int
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
        in_flight = self.begun[0][0] if self.begun else None
        plan = self.scheduler.plan(self.version, in_flight)
        decoding = {sequence: sequence.request for sequence in plan.decoding}
        prefill = plan.prefill.arrays()
        begins = bool(len(plan.prefill) or len(plan.swaps) or decoding)
        if begins:
            table = page_table(self.scheduler.running, self.shape)
            sent = Dispatch(None, plan.version, table, prefill, None, None, decoding, plan.swaps)
            self.begun.append((sent, *self._run(sent, in_flight)))
        if self.begun and (not begins or len(self.begun) > self.ahead):
            self._finish(*self.begun.popleft())
            return True
        return begins or bool(plan.fixed)

    def _run(self, sent, in_flight):
        self.cache, copied = sent.swaps.begin(self.cache, None)
        self._prefill(sent)
        return self._decode(sent, in_flight), copied

    def _put(self, sent, sequence, start, count):
        """Computes `count` tokens from position `start` on, which attend to all before."""
        place = sequence.slot * self.shards // self.shape.max_sequences
        position = np.arange(start + count)
        page = place * (self.shape.pages // self.shards)
        page = page + sent.page_SW[sequence.slot][position // self.shape.page_tokens]
        offset, held = position % self.shape.page_tokens, self.held[sequence.conversation]
        if len(held) < start:  # its first pages were cached
            held += self._names(sequence, sequence.prefix_weights.version, len(held), start)
        found = self.cache[0].k_GPbH[0, page[:start], offset[:start], 0]
        np.testing.assert_array_equal(found, held[:start])
        held[start:] = self._names(sequence, sent.version, start, start + count)
        for array in (self.cache[0].k_GPbH, self.cache[0].v_GPbH):
            array[0, page[start:], offset[start:], 0] = held[start:]

    def _names(self, sequence, version, start, end):
        """Tokens of a group's common prompt have the same names, others are named by their owner,
        and all by the weights' version and the adapter."""
        shared, position = self.shared[sequence.conversation], np.arange(start, end)
        own = 1000 * (sequence.conversation + 1) + position
        weights = version / 100 + sequence.adapter / 10
        return (np.where(position < shared, position, own) + weights).tolist()

    def _prefill(self, sent):
        sequences = {sequence.slot: sequence for sequence in self.scheduler.running}
        prefill = sent.prefill
        for q, r in np.argwhere(prefill.count_QR[: prefill.num_batches] > 0):
            sequence = sequences[prefill.slot_QR[q, r]]
            self._put(sent, sequence, prefill.start_QR[q, r], prefill.count_QR[q, r])

    def _decode(self, sent, in_flight):
        decoded = {}
        for sequence in sent.decoding:
            start, budget = sequence.length, sequence.budget
            if in_flight is not None and in_flight.decodes(sequence):
                start, budget = start + self.shape.decode_steps, budget - self.shape.decode_steps
            assert budget > 0
            count = min(budget, self.shape.decode_steps)
            self._put(sent, sequence, start, count)
            decoded[sequence] = count
        return decoded

    def _finish(self, sent, decoded, copied):
        sent.swaps.finish(copied, None)
        for sequence in sent.decoding:
            if sent.decodes(sequence):
                tokens = np.full((self.shape.decode_steps,), -1)
                tokens[: decoded[sequence]] = 100 + sequence.conversation
                none = np.zeros(self.shape.decode_steps)
                accepted = sequence.accepted(DecodedTokens(tokens, *[none] * 5))
                sequence.append(accepted, sent.version, (STOP,))
                if sequence.page_keys is not None:
                    self.scheduler.share_pages(sequence, sent.version)


@pytest.fixture(scope="module", autouse=True)
def arrays():
    """Instead of copies on devices, of arrays in which shards follow each other."""

    def flat(page_ZW, num_pages):
        each = num_pages // len(page_ZW)
        return np.where(page_ZW < each, page_ZW + np.arange(len(page_ZW))[:, None] * each, -1)

    def copy_out(cache, page_ZW):
        (layer,) = cache
        where = flat(page_ZW, layer.k_GPbH.shape[1])
        rows = [x[0, where].reshape(len(where), 1, -1, 1) for x in (layer.k_GPbH, layer.v_GPbH)]
        return [LayerRows(*rows)]

    def copy_in(cache, page_ZW, layers):
        ((layer,), (rows,)) = cache, layers
        where = flat(page_ZW, layer.k_GPbH.shape[1])
        for x, new in ((layer.k_GPbH, rows.k_BGMH), (layer.v_GPbH, rows.v_BGMH)):
            new = new.reshape(*where.shape, x.shape[2])
            x[0, where[where >= 0], :, 0] = new[where >= 0]
        return cache

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_swaps, "copy_out", copy_out)
        patch.setattr(page_swaps, "copy_in", copy_in)
        yield


@dataclasses.dataclass
class Talk:
    """A conversation that asks for its turns one after the other."""

    name: int
    turns: list[Turn]
    priority: int
    length: int = 0  # of all that was prefilled and decoded
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
        room = played.shape.max_sequence_length - self.length - turn.num_new
        assert len(reply.ids) == max(min(turn.max_tokens, room), 0)
        assert reply.stop == ("length" if turn.max_tokens <= room else "context_full")
        self.length += turn.num_new + len(reply.ids)
        del self.turns[0]
        self.request, self.since = None, 0
        if not self.turns:
            played.scheduler.end(self.name, RuntimeError("ended"))
        return not self.turns

    def _ask(self, played, number):
        ids = np.full((self.turns[0].num_new,), 10 + self.name, np.int32)
        if not self.length:
            ids[: played.shared[self.name]] = 5
        options, key = RequestOptions(priority=self.priority), np.zeros(2, np.uint32)
        turn = self.turns[0]
        told = turn.max_tokens, Sampling(), key, options, number
        request = Request(self.name, ids, *told, adapter=self.name % 2)
        played.scheduler.add(request)
        return request


@pytest.mark.parametrize("replies", [False, True], ids=["", "replies"])
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("ahead", [False, True], ids=["", "ahead"])
@given(talks=TALKS, rows=st.integers(1, 4), spare=st.integers(0, 15), every=st.integers(1, 30))
@settings(max_examples=150, deadline=None)
def test_everybody_is_served_and_finds_what_it_has_cached(
    ahead, shards, replies, talks, rows, spare, every
):
    """With as few as the pages of one conversation of full length, in one row, on each shard; and
    with other weights, or the first ones again, after `every` dispatches. Half of them use an
    adapter."""
    sizes = {"max_sequences": rows * shards, "pages": (10 + spare) * shards}
    shape = engine_shape(**SIZES, **sizes, dispatch_ahead=ahead, share_replies=replies)
    played, numbers = Played(shape, shards, ahead), itertools.count()
    open_ones = []
    for name, (turns, priority, is_member) in enumerate(talks):
        played.shared[name] = min(turns[0].num_new, 20) if is_member else 0
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
        # Its own prefill and decode dispatches, those prefilled before it, and as much in flight.
        assert best is None or since <= 2 * (5 + 5 + 5), "who ranks first makes progress"
        if not open_ones and not played.begun:
            break
    assert not open_ones
    for shard in played.scheduler._shards:
        assert shard.running == [] and shard.pages.allocate([], shape.pages // shards)
    assert not played.scheduler._waiting

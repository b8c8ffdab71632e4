"""The host's view of a conversation in the cache: what is cached, what awaits prefill, what was
decoded."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from ale_jax.engine.page_swaps import SwappedPages
from ale_jax.engine.pages import PageKeys, Weights
from ale_jax.engine.request import Request, Sampled, TokenConstraint

FIRST_ACCEPTANCE = 0.25  # so low that some drafts must be right before any is verified


class DecodedTokens(NamedTuple):
    """What a dispatch decoded in one slot; the token is -1 once the slot was idle. left_nw: without
    words if it is not recorded. See `DecodeOutput`."""

    token_n: np.ndarray
    logp_mu_n: np.ndarray
    logp_plain_n: np.ndarray
    top_id_nk: np.ndarray
    top_logp_nk: np.ndarray
    left_nw: np.ndarray


@dataclasses.dataclass(frozen=True)
class PrefillChunk:
    """Consecutive ids of a conversation, from position `start` on, that are prefilled at once and
    padded to `size`."""

    start: int
    ids: list[int]
    size: int


class RoutingRecord(Protocol):
    """What a sequence needs of `dispatch.ExpertRecord`, for router replay."""

    def experts(self, slot: int, pages: Sequence[int], start: int, end: int) -> np.ndarray: ...


class DraftRecord:
    """What drafts of a conversation are made of, as in `model.drafts.Said`: its ids by position, at
    most `longest`, and the share of drafted tokens that were right."""

    def __init__(self, longest: int):
        self.id_L = np.zeros((longest,), np.int32)
        self.acceptance = FIRST_ACCEPTANCE


class SequenceState:
    """A conversation. `pending_ids` are the ids that the cache does not hold: all but the last
    await prefill, and the last is the input of the next decode step.

    It has a slot, which is a row of the batch, and pages of the same shard, from its first prefill
    until it ends or is preempted. Then others get them, and what its pages held is in `swapped`.

    adapter: the number of the one that it uses among those beside the weights; 0 for none.
    is_recurrent: the policy has states, which hold all tokens that were decoded, and from which
    none can be taken back. So nothing is decoded under a speculative constraint. If a stop checker
    ends a reply within a dispatch, the next request has the whole conversation prefilled.
    """

    def __init__(
        self,
        conversation: int,
        max_tokens: int,
        record: RoutingRecord | None = None,
        is_recurrent: bool = False,
        adapter: int = 0,
    ):
        self.conversation, self._max_tokens, self._record = conversation, max_tokens, record
        self.adapter = adapter
        self._is_recurrent = is_recurrent
        self._ids: list[int] = []  # that the cache holds; only if the policy is recurrent
        self.slot = 0  # if it has none: the last one that it had
        self.has_slot = False
        self.pages: list[int] = []
        self.swapped: SwappedPages | None = None
        self.idle_since = 0.0  # seconds of `time.monotonic`; only if it has no request
        # Of the full pages of the first prompt, and of those after it if `page_keys` finds them.
        self.prefix_keys: list[bytes] = []
        self.prefix_weights: Weights | None = None
        self.page_keys: PageKeys | None = None
        self.draft_record: DraftRecord | None = None  # if there are drafts
        self._filled = 0  # pages whose keys it has found
        self.request: Request | None = None
        self.length = 0  # tokens in the cache
        self._num_reported = 0  # of these, those whose experts came with earlier replies
        self.pending_ids: list[int] = []
        self.budget = 0  # tokens that may still be decoded for the current request
        self._length_stop = ""  # `Sampled.stop` if the budget is used up
        self._parts: list[tuple[np.ndarray, ...]] = []  # what the reply consists of so far
        self._constraints: Sequence[TokenConstraint] = ()  # of the tokens of the next dispatch
        self._mask_ids: list[int] = []  # of its tokens, if it is not free
        self._max_speculative = 0  # per dispatch, as a token that is not accepted costs a step
        self._chunk_ends: deque[tuple[int, int]] = deque()  # (end, size) of the next chunks

    def move(self, conversation: int, record: RoutingRecord | None) -> None:
        """Goes on with another engine, while it has no slot. conversation: its number there."""
        assert not self.has_slot
        self.conversation, self._record = conversation, record

    def fail(self, error: Exception) -> None:
        """Fails the request in progress, if there is one, with `error`."""
        if self.request is not None:
            self._leave_request().fail(error)

    @property
    def current(self) -> Request:
        """The request in progress."""
        assert self.request is not None, "the conversation waits for its next request"
        return self.request

    @property
    def num_to_prefill(self) -> int:
        return max(len(self.pending_ids) - 1, 0) if self.request else 0

    @property
    def next_chunk_size(self) -> int:
        """Padded size of the next prefill chunk."""
        return self._chunk_ends[0][1]

    def begin(self, request: Request, sizes: tuple[int, ...]) -> None:
        """Begins a request. sizes: those that a prefill chunk may have, ascending.

        The chunks are fixed here, before the prefix that is cached is skipped. Each token is then
        computed in a chunk of the same size either way, with bitwise identical results.
        """
        assert self.request is None, "one request per conversation at a time"
        self.request = request
        self.pending_ids += request.new_ids.tolist()
        self._parts, self._constraints, self._mask_ids = [], (), []
        self._max_speculative = 0 if self._is_recurrent else self._max_tokens
        # A token may be decoded at every position after the context, including the last one.
        room = self._longest(request) - (self.length + len(self.pending_ids))
        self.budget = min(request.max_tokens, room)
        self._length_stop = "length" if request.max_tokens <= room else "context_full"
        if self.budget <= 0:
            self._finish("context_full")
        self._chunk_ends = _split_into_chunks(sizes, self.length, self.length + self.num_to_prefill)

    def tokens_with(self, request: Request, steps: int) -> int:
        """Returns the tokens in the cache once the request's context is prefilled and `steps`
        tokens more are decoded. The request is in progress or comes next."""
        if request is self.request:
            return self.length + self.num_to_prefill + min(self.budget, steps)
        context = self.length + len(self.pending_ids) + len(request.new_ids)
        room = self._longest(request) - context
        # Without room, it ends before anything is prefilled.
        return context - 1 + min(request.max_tokens, steps, room) if room > 0 else self.length

    def _longest(self, request: Request) -> int:
        return min(request.options.context or self._max_tokens, self._max_tokens)

    def may_grow(self, page_tokens: int) -> bool:
        """Returns whether the request in progress may need more pages than it has."""
        if self.request is None:
            return False
        return self.tokens_with(self.request, self.budget) > len(self.pages) * page_tokens

    def skip_cached(self, count: int) -> None:
        """Skips the prefill of the next `count` ids, which the prefix cache holds."""
        assert count <= self.num_to_prefill
        self._add(self.pending_ids[:count])
        self.pending_ids = self.pending_ids[count:]
        self.length += count
        while self._chunk_ends and self._chunk_ends[0][0] <= self.length:
            self._chunk_ends.popleft()

    def next_prefill_chunk(self) -> PrefillChunk:
        """Takes the next chunk from those that await prefill."""
        end, size = self._chunk_ends.popleft()
        count = end - self.length
        chunk = PrefillChunk(self.length, self.pending_ids[:count], size)
        self._add(chunk.ids)
        self.pending_ids = self.pending_ids[count:]
        self.length = end
        return chunk

    def guided(self, most: int) -> Sequence[TokenConstraint]:
        """Returns the constraints of the next tokens, at most of `most` and of the budget. Empty if
        there is no guide, or the request has failed with what the guide has raised."""
        if self.current.options.guide is None:
            return ()
        before = self._reply_ids()
        found = self._constraints_for(before, min(most, self.budget))
        certain = sum(not each.is_speculative for each in found)
        self._constraints = found[: certain + self._max_speculative]
        if self.current.options.left is None:
            # Once, however often it is asked, and however few of these tokens are decoded.
            self._mask_ids[len(before) :] = [each.mask_id for each in self._constraints]
        return self._constraints

    def accepted(self, decoded: DecodedTokens) -> DecodedTokens:
        """Returns the tokens that were decoded before the slot was idle, and before the first one
        whose speculative constraint was wrong. The guide may fail the request meanwhile."""
        new_ids = decoded.token_n[decoded.token_n >= 0]
        count = self._count_accepted(new_ids) if self._constraints else len(new_ids)
        return DecodedTokens(*(each[:count] for each in decoded))

    def append(self, decoded: DecodedTokens, version: int, stop_ids: tuple[int, ...]) -> None:
        """Appends what `accepted` has returned to the reply, if there is a request still."""
        if not self.request:
            return
        count = len(decoded.token_n)
        ended = self._stop_position(decoded.token_n)
        if ended is not None:
            count = ended  # what the cache holds behind it is overwritten by what comes next
        *parts, left_nw = (each[:count] for each in decoded)
        if not self._keep(left_nw):
            self._forget_cache()
            return
        ids, versions = parts[0], np.full((count,), version, np.int32)
        self._parts.append((*parts, versions))
        self._add([self.pending_ids[0], *ids[:-1].tolist()])
        self.length += count
        self.budget -= count
        self.pending_ids = [int(ids[-1])]
        if self.pending_ids[0] in stop_ids or ended is not None:
            self._finish("stop")
        elif self.budget == 0:
            self._finish(self._length_stop)
        if count < len(decoded.token_n):
            self._forget_cache()

    def _forget_cache(self) -> None:
        """Has all tokens prefilled anew, if states hold some that the conversation does not."""
        if self._is_recurrent:
            self.pending_ids, self._ids, self.length = self._ids + self.pending_ids, [], 0

    def _keep(self, left_nw: np.ndarray) -> bool:
        """Keeps what the next tokens could be drawn from, if it is wanted. False if this has failed
        the request."""
        if (left := self.current.options.left) is None:
            return True
        try:
            self._mask_ids += map(left.number, left_nw)
        except Exception as error:  # the others' replies go on
            self.fail(error)
        return self.request is not None

    def forget_keys(self) -> None:
        """Leaves the rest of the conversation without keys, as other weights compute it."""
        self.prefix_keys, self.page_keys = [], None

    def _add(self, ids: Sequence[int]) -> None:
        """Notes the next ids in the cache, and finds the keys of the pages that they fill."""
        if self._is_recurrent:
            self._ids += ids
        if self.draft_record is not None:
            self.draft_record.id_L[self.length : self.length + len(ids)] = ids
        if self.page_keys is None:
            return
        for key in self.page_keys.add(ids):
            self._filled += 1
            if self._filled > len(self.prefix_keys):
                self.prefix_keys.append(key)

    def _constraints_for(self, ids: np.ndarray, most: int) -> Sequence[TokenConstraint]:
        """Asks the guide. Empty if it has failed the request."""
        guide = self.current.options.guide
        assert guide is not None, "there are constraints with a guide only"
        try:
            return guide.next(ids, most)
        except Exception as error:  # the others' replies go on
            self.fail(error)
            return ()

    def _count_accepted(self, new_ids: np.ndarray) -> int:
        before, right = self._reply_ids(), 0
        for count, each in enumerate(self._constraints[: len(new_ids)]):
            if not each.is_speculative:
                continue
            found = self._constraints_for(np.concatenate([before, new_ids[:count]]), 1)
            is_right = bool(found) and _allow_the_same(found[0], each)
            right += is_right
            self._max_speculative = 1 + 2 * right
            if not is_right:
                return count
        return len(new_ids)

    def _stop_position(self, new_ids: np.ndarray) -> int | None:
        """After how many of the new ids the reply ends, if its stop checker says so."""
        stop_checker = self.current.options.stop_checker
        if stop_checker is None:
            return None
        before = self._reply_ids()
        ended = stop_checker(np.concatenate([before, new_ids]))
        return None if ended is None else max(ended - len(before), 1)

    def _reply_ids(self) -> np.ndarray:
        """The ids of the reply so far."""
        return np.concatenate([np.zeros((0,), np.int32), *(ids for ids, *_ in self._parts)])

    def _leave_request(self) -> Request:
        request, self.request = self.current, None
        self.idle_since = time.monotonic()
        return request

    def _finish(self, stop: str) -> None:
        request = self._leave_request()
        ids = version = np.zeros((0,), np.int32)
        mu = plain = np.zeros((0,), np.float32)
        top_id_Tk: np.ndarray | None = None
        top_logp_Tk: np.ndarray | None = None
        if self._parts:
            parts = map(np.concatenate, zip(*self._parts, strict=True))
            ids, mu, plain, id_Tk, logp_Tk, version = parts
            most = request.options.top_logprobs
            if most and len(ids):
                top_id_Tk, top_logp_Tk = id_Tk[:, :most], logp_Tk[:, :most]
        expert_TLK = None
        if self._record is not None:
            expert_TLK = self._record.experts(
                self.slot, self.pages, self._num_reported, self.length
            )
        self._num_reported = max(self._num_reported, self.length)
        mask_id = np.array(self._mask_ids[: len(ids)], np.int16) if self._mask_ids else None
        top = top_id_Tk, top_logp_Tk
        request.future.set_result(Sampled(ids, mu, plain, version, stop, expert_TLK, *top, mask_id))


def _allow_the_same(one: TokenConstraint, other: TokenConstraint) -> bool:
    if one.allowed_w is None or other.allowed_w is None:
        return one.allowed_w is other.allowed_w
    return np.array_equal(one.allowed_w, other.allowed_w)


def _split_into_chunks(sizes: tuple[int, ...], start: int, stop: int) -> deque[tuple[int, int]]:
    """(end, size) of chunks that cover start..stop: the largest size as long as it is filled, then
    the smallest that holds the rest."""
    ends: deque[tuple[int, int]] = deque()
    while start < stop:
        size = next((size for size in sizes if size >= stop - start), sizes[-1])
        start = min(start + size, stop)
        ends.append((start, size))
    return ends

"""The host's view of a conversation in the cache: what was read, is unread, and was written."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

import numpy as np

from ale_jax.engine.guiding import ALONE, Company, NextToken
from ale_jax.engine.page_moves import PageCopy
from ale_jax.engine.pages import PageKeys, prefix_keys
from ale_jax.model.sampler import Sampling


@dataclasses.dataclass(frozen=True)
class Sampled:
    """A reply: its ids, and of each id the log-probability as sampled, the log-probability under
    the plain softmax, and the version of the weights.

    stop: "stop": a stop token was written (the last id); "length": max_tokens were written;
    "context_full": the slot has no room left (`ids` may be empty).

    top_id_Tk, top_logp_Tk: if the reply's company wants them, the k most probable tokens in place
    of each id, and their log-probabilities under the plain softmax.

    expert_TLK: if experts are recorded, those of the T tokens that entered the cache since the
    conversation's last reply, int16. The last id of `ids` enters it with the next reply.

    mask_id: as in `Turn`; None if nothing guided the reply.
    """

    ids: np.ndarray
    logp_mu: np.ndarray
    logp_old: np.ndarray
    version: np.ndarray
    stop: str
    expert_TLK: np.ndarray | None = None
    top_id_Tk: np.ndarray | None = None
    top_logp_Tk: np.ndarray | None = None
    mask_id: np.ndarray | None = None


@dataclasses.dataclass(eq=False)
class Request:
    conversation: int
    new_ids: np.ndarray
    max_tokens: int
    sampling: Sampling
    key: np.ndarray
    company: Company = ALONE
    number: int = 0  # in the order in which the engine was given them
    future: Future = dataclasses.field(default_factory=Future)
    _keys: tuple[int | None, list[bytes]] | None = None

    @property
    def rank(self) -> tuple[int, int]:
        """Requests are served in ascending order."""
        return -self.company.priority, self.number

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def prefix_keys(self, page_tokens: int, version: int | None) -> list[bytes]:
        """Keys of the full pages to be read. Cached, because a waiting request is checked often."""
        if self._keys is None or self._keys[0] != version:
            self._keys = version, prefix_keys(self.new_ids[:-1], page_tokens, version)
        return self._keys[1]


class Written(NamedTuple):
    """What a burst wrote for one slot; the token is -1 once it was idle. See `Burst`."""

    token_n: np.ndarray
    logp_mu_n: np.ndarray
    logp_old_n: np.ndarray
    top_id_nk: np.ndarray
    top_logp_nk: np.ndarray


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Ids to be read from position `start` on, in a chunk that is padded to `size`."""

    start: int
    ids: list[int]
    size: int


class RoutingReader(Protocol):
    """What a slot needs of `dispatch.ExpertRecord`, for router replay."""

    def read(self, slot: int, pages: Sequence[int], start: int, end: int) -> np.ndarray: ...


class CacheSlot:
    """A conversation. `tail` holds the ids that the cache does not: all but the last must be read,
    and the last is the input of the next decode step.

    It has a place, which is a row of the batch (`index`) and pages of the same shard, from when it
    is read until it ends or is preempted. Then its place goes to others, and what its pages held is
    in `copy`.
    """

    def __init__(self, conversation: int, max_tokens: int, record: RoutingReader | None = None):
        self.conversation, self._max_tokens, self._record = conversation, max_tokens, record
        self.index = 0  # without a place: the last one that it had
        self.has_place = False
        self.pages: list[int] = []
        self.copy: PageCopy | None = None
        self.idle_since = 0.0  # seconds of `time.monotonic`; only if it has no request
        # Of the full pages of the first prompt, and of those after it if `page_keys` finds them.
        self.prefix_keys: list[bytes] = []
        self.prefix_version: int | None = None
        self.page_keys: PageKeys | None = None
        self._filled = 0  # pages whose keys it has found
        self.request: Request | None = None
        self.length = 0  # tokens in the cache
        self._told = 0  # of these, those whose experts came with earlier replies
        self.tail: list[int] = []
        self.budget = 0  # tokens that the current request may still write
        self._cut = ""  # why the reply ends when the budget is used up
        self._parts: list[tuple[np.ndarray, ...]] = []  # what the reply consists of so far
        self._held: Sequence[NextToken] = ()  # what guides the tokens of the next burst
        self._mask_ids: list[int] = []  # of its tokens, if something guides it
        self._most_guesses = 0  # in a burst, for it costs a step to write what is then dropped
        self._ends: deque[tuple[int, int]] = deque()  # (end, size) of the chunks to be read

    def fail(self, error: Exception) -> None:
        """A request in progress fails with `error`."""
        if self.request is not None:
            self._leave_request().fail(error)

    @property
    def unread(self) -> int:
        return max(len(self.tail) - 1, 0) if self.request else 0

    @property
    def next_size(self) -> int:
        """Size of the chunk that `read` takes next."""
        return self._ends[0][1]

    def begin(self, request: Request, sizes: tuple[int, ...]) -> None:
        """Begins a request. sizes: those that a chunk may have, ascending.

        The chunks of the context are fixed here, before the part that others have already read is
        skipped. Each token is then computed in a chunk of the same size either way, with bitwise
        identical results.
        """
        assert self.request is None, "one request per conversation at a time"
        self.request = request
        self.tail += request.new_ids.tolist()
        self._parts, self._held, self._mask_ids = [], (), []
        self._most_guesses = self._max_tokens
        # A token may be written at every position after the context, including the slot's last one.
        room = self._max_tokens - (self.length + len(self.tail))
        self.budget = min(request.max_tokens, room)
        self._cut = "length" if request.max_tokens <= room else "context_full"
        if self.budget <= 0:
            self._finish("context_full")
        self._ends = _cut_into(sizes, self.length, self.length + self.unread)

    def tokens_with(self, request: Request, steps: int) -> int:
        """Tokens in the cache once the request's context is read and `steps` tokens more are
        written. The request is in progress or comes next."""
        if request is self.request:
            return self.length + self.unread + min(self.budget, steps)
        context = self.length + len(self.tail) + len(request.new_ids)
        room = self._max_tokens - context
        # Without room, it ends before anything is read.
        return context - 1 + min(request.max_tokens, steps, room) if room > 0 else self.length

    def may_grow(self, page_tokens: int) -> bool:
        """Whether the request in progress may need more pages than it has."""
        if self.request is None:
            return False
        return self.tokens_with(self.request, self.budget) > len(self.pages) * page_tokens

    def skip(self, count: int) -> None:
        """The next `count` ids, all unread, are already in the cache."""
        assert count <= self.unread
        self._note_cached(self.tail[:count])
        self.tail = self.tail[count:]
        self.length += count
        while self._ends and self._ends[0][0] <= self.length:
            self._ends.popleft()

    def read(self) -> Chunk:
        """Takes the next chunk to be put into the cache."""
        end, size = self._ends.popleft()
        count = end - self.length
        chunk = Chunk(self.length, self.tail[:count], size)
        self._note_cached(chunk.ids)
        self.tail = self.tail[count:]
        self.length = end
        return chunk

    def guided(self, most: int) -> Sequence[NextToken]:
        """What holds for the next tokens, at most for `most` and for those that it may still write.
        Empty if there is no guide, or the request has failed with what the guide has raised."""
        if self.request.company.guide is None:
            return ()
        written = self._written()
        held = self._ask(written, min(most, self.budget))
        certain = sum(not each.is_guess for each in held)
        self._held = held[: certain + self._most_guesses]
        # Once, however often it is asked, and however few of these tokens are written.
        self._mask_ids[len(written) :] = [each.mask_id for each in self._held]
        return self._held

    def well_drawn(self, written: Written) -> Written:
        """What a burst wrote for this slot before it was idle, and before the first wrong guess.
        Without a request, the guide has failed it meanwhile."""
        new_ids = written.token_n[written.token_n >= 0]
        count = self._count_well_drawn(new_ids) if self._held else len(new_ids)
        return Written(*(each[:count] for each in written))

    def write(self, written: Written, version: int, stop_ids: tuple[int, ...]) -> None:
        """Takes over what `well_drawn` has returned, if there is a request still."""
        if not self.request:
            return
        count = len(written.token_n)
        ended = self._watched(written.token_n)
        if ended is not None:
            count = ended  # what the cache holds behind it is overwritten by what comes next
        ids = written.token_n[:count]
        versions = np.full((count,), version, np.int32)
        self._parts.append((*(each[:count] for each in written), versions))
        self._note_cached([self.tail[0], *ids[:-1].tolist()])
        self.length += count
        self.budget -= count
        self.tail = [int(ids[-1])]
        if self.tail[0] in stop_ids or ended is not None:
            self._finish("stop")
        elif self.budget == 0:
            self._finish(self._cut)

    def forget_keys(self) -> None:
        """The rest of the conversation has no keys, as other weights read or write it."""
        self.prefix_keys, self.page_keys = [], None

    def _note_cached(self, ids: Sequence[int]) -> None:
        """ids: that the cache holds behind those before."""
        if self.page_keys is None:
            return
        for key in self.page_keys.add(ids):
            self._filled += 1
            if self._filled > len(self.prefix_keys):
                self.prefix_keys.append(key)

    def _ask(self, ids: np.ndarray, most: int) -> Sequence[NextToken]:
        """What the guide says. Empty if it has failed the request."""
        try:
            return self.request.company.guide.next(ids, most)
        except Exception as error:  # the others' replies go on
            self.fail(error)
            return ()

    def _count_well_drawn(self, new_ids: np.ndarray) -> int:
        before, right = self._written(), 0
        for count, held in enumerate(self._held[: len(new_ids)]):
            if not held.is_guess:
                continue
            found = self._ask(np.concatenate([before, new_ids[:count]]), 1)
            is_right = bool(found) and np.array_equal(found[0].allowed_w, held.allowed_w)
            right += is_right
            self._most_guesses = 1 + 2 * right
            if not is_right:
                return count
        return len(new_ids)

    def _watched(self, new_ids: np.ndarray) -> int | None:
        """After how many of the new ids the reply ends, if its watcher says so."""
        watch = self.request.company.watch
        if watch is None:
            return None
        before = self._written()
        ended = watch(np.concatenate([before, new_ids]))
        return None if ended is None else max(ended - len(before), 1)

    def _written(self) -> np.ndarray:
        """The ids of the reply so far."""
        return np.concatenate([np.zeros((0,), np.int32), *(ids for ids, *_ in self._parts)])

    def _leave_request(self) -> Request:
        request, self.request = self.request, None
        self.idle_since = time.monotonic()
        return request

    def _finish(self, stop: str) -> None:
        request = self._leave_request()
        ids = version = np.zeros((0,), np.int32)
        mu = old = np.zeros((0,), np.float32)
        top: tuple[np.ndarray | None, ...] = None, None
        if self._parts:
            ids, mu, old, *top, version = map(np.concatenate, zip(*self._parts, strict=True))
        most = request.company.top_logprobs
        top = tuple(each[:, :most] for each in top) if most and len(ids) else (None, None)
        expert_TLK = self._record and self._record.read(
            self.index, self.pages, self._told, self.length
        )
        self._told = self.length
        mask_id = np.array(self._mask_ids[: len(ids)], np.int16) if self._mask_ids else None
        request.future.set_result(Sampled(ids, mu, old, version, stop, expert_TLK, *top, mask_id))


def _cut_into(sizes: tuple[int, ...], start: int, stop: int) -> deque[tuple[int, int]]:
    """(end, size) of chunks that cover start..stop: the largest size as long as it is filled, then
    the smallest that holds the rest."""
    ends: deque[tuple[int, int]] = deque()
    while start < stop:
        size = next((size for size in sizes if size >= stop - start), sizes[-1])
        start = min(start + size, stop)
        ends.append((start, size))
    return ends

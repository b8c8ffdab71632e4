"""The host's view of a conversation in the cache: what was read, is unread, and was written."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

import numpy as np

from ale_jax.model.sampler import Sampling
from ale_jax.rollout.pages import prefix_keys


@dataclasses.dataclass(frozen=True)
class Sampled:
    """A reply: its ids, and of each id the log-probability as sampled, the log-probability under
    the plain softmax, and the version of the weights.

    stop: "stop": a stop token was written (the last id); "length": max_tokens were written;
    "context_full": the slot has no room left (`ids` may be empty).

    expert_TLK: if experts are recorded, those of the T tokens that entered the cache since the
    conversation's last reply, int16. The last id of `ids` enters it with the next reply.
    """

    ids: np.ndarray
    logp_mu: np.ndarray
    logp_old: np.ndarray
    version: np.ndarray
    stop: str
    expert_TLK: np.ndarray | None = None


# Given all ids of a reply so far: after how many of them it ends; None if it goes on.
Watch = Callable[[np.ndarray], int | None]


@dataclasses.dataclass(eq=False)
class Request:
    """watch: called after each dispatch that wrote something for it, by the engine's thread."""

    conversation: int
    new_ids: np.ndarray
    max_tokens: int
    sampling: Sampling
    key: np.ndarray
    watch: Watch | None = None
    future: Future = dataclasses.field(default_factory=Future)
    _keys: tuple[int | None, list[bytes]] | None = None

    def prefix_keys(self, page_tokens: int, version: int | None) -> list[bytes]:
        """Keys of the full pages to be read. Cached, because a waiting request is checked often."""
        if self._keys is None or self._keys[0] != version:
            self._keys = version, prefix_keys(self.new_ids[:-1], page_tokens, version)
        return self._keys[1]


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
    """One conversation at a time. `tail` holds the ids that the cache does not: all but the last
    must be read, and the last is the input of the next decode step."""

    def __init__(self, index: int, max_tokens: int, record: RoutingReader | None = None):
        self.index, self._max_tokens, self._record = index, max_tokens, record
        self.conversation: int | None = None
        self.pages: list[int] = []
        self.prefix_keys: list[bytes] = []  # of the full pages of the first prompt
        self.prefix_version: int | None = None
        self.request: Request | None = None
        self.length = 0  # tokens in the cache
        self._told = 0  # of these, those whose experts came with earlier replies
        self.tail: list[int] = []
        self.budget = 0  # tokens that the current request may still write
        self._cut = ""  # why the reply ends when the budget is used up
        self._parts: list[tuple[np.ndarray, ...]] = []  # what the reply consists of so far
        self._ends: deque[tuple[int, int]] = deque()  # (end, size) of the chunks to be read

    def free(self, error: Exception) -> None:
        """Forgets the conversation. A request in progress fails with `error`."""
        request = self.request
        self.__init__(self.index, self._max_tokens, self._record)
        if request is not None:
            request.future.set_exception(error)

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
        self._parts = []
        # A token may be written at every position after the context, including the slot's last one.
        room = self._max_tokens - (self.length + len(self.tail))
        self.budget = min(request.max_tokens, room)
        self._cut = "length" if request.max_tokens <= room else "context_full"
        if self.budget <= 0:
            self._finish("context_full")
        self._ends = _cut_into(sizes, self.length, self.length + self.unread)

    def skip(self, count: int) -> None:
        """The next `count` ids, all unread, are already in the cache."""
        assert count <= self.unread
        self.tail = self.tail[count:]
        self.length += count
        while self._ends and self._ends[0][0] <= self.length:
            self._ends.popleft()

    def read(self) -> Chunk:
        """Takes the next chunk to be put into the cache."""
        end, size = self._ends.popleft()
        count = end - self.length
        chunk = Chunk(self.length, self.tail[:count], size)
        self.tail = self.tail[count:]
        self.length = end
        return chunk

    def write(
        self,
        token_n: np.ndarray,
        logp_mu_n: np.ndarray,
        logp_old_n: np.ndarray,
        version: int,
        stop_ids: tuple[int, ...],
    ) -> None:
        """Takes over what a burst wrote for this slot (-1 once it was idle)."""
        count = int((token_n >= 0).sum())
        ended = self._watched(token_n[:count])
        if ended is not None:
            count = ended  # what the cache holds behind it is overwritten by what comes next
        ids = token_n[:count]
        versions = np.full((count,), version, np.int32)
        self._parts.append((ids, logp_mu_n[:count], logp_old_n[:count], versions))
        self.length += count
        self.budget -= count
        self.tail = [int(ids[-1])]
        if self.tail[0] in stop_ids or ended is not None:
            self._finish("stop")
        elif self.budget == 0:
            self._finish(self._cut)

    def _watched(self, new_ids: np.ndarray) -> int | None:
        """After how many of the new ids the reply ends, if its watcher says so."""
        if self.request.watch is None:
            return None
        before = sum(len(ids) for ids, *_ in self._parts)
        ids = np.concatenate([ids for ids, *_ in self._parts] + [new_ids])
        ended = self.request.watch(ids)
        return None if ended is None else max(ended - before, 1)

    def _finish(self, stop: str) -> None:
        request, self.request = self.request, None
        if self._parts:
            ids, mu, old, version = (np.concatenate(x) for x in zip(*self._parts, strict=True))
        else:
            ids = version = np.zeros((0,), np.int32)
            mu = old = np.zeros((0,), np.float32)
        expert_TLK = self._record and self._record.read(
            self.index, self.pages, self._told, self.length
        )
        self._told = self.length
        request.future.set_result(Sampled(ids, mu, old, version, stop, expert_TLK))


def _cut_into(sizes: tuple[int, ...], start: int, stop: int) -> deque[tuple[int, int]]:
    """(end, size) of chunks that cover start..stop: the largest size as long as it is filled, then
    the smallest that holds the rest."""
    ends: deque[tuple[int, int]] = deque()
    while start < stop:
        size = next((size for size in sizes if size >= stop - start), sizes[-1])
        start = min(start + size, stop)
        ends.append((start, size))
    return ends

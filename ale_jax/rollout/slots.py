"""The host's view of a cache slot: what the cache holds, what is unread, what is written."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future

import numpy as np

from ale_jax.model.sampler import Sampling


@dataclasses.dataclass(frozen=True)
class Sampled:
    """A reply: ids [A], log-probability as sampled and under the plain softmax, version per token.

    stop: "stop" a stop token was written (the last id); "length" max_tokens were; "context_full"
    the slot has no room left (`ids` may be empty).
    """

    ids: np.ndarray
    logp_mu: np.ndarray
    logp_old: np.ndarray
    version: np.ndarray
    stop: str


@dataclasses.dataclass(eq=False)
class Request:
    conversation: int
    new_ids: np.ndarray
    max_tokens: int
    sampling: Sampling
    key: np.ndarray
    future: Future = dataclasses.field(default_factory=Future)


class CacheSlot:
    """One slot of the cache. `tail` holds the ids that the cache does not: all but its last one
    must be prefilled, the last one is the input of the next decode step."""

    def __init__(self, index: int, size: int):
        self.index, self._size = index, size
        self.conversation: int | None = None
        self.request: Request | None = None
        self.length = 0  # tokens in the cache
        self.tail: list[int] = []
        self.budget = 0  # tokens that the request under way may still write

    def free(self, error: Exception) -> None:
        """Forgets the conversation; a request under way gets `error`."""
        request = self.request
        self.__init__(self.index, self._size)
        if request is not None:
            request.future.set_exception(error)

    @property
    def unread(self) -> int:
        return max(len(self.tail) - 1, 0) if self.request else 0

    def begin(self, request: Request) -> None:
        assert self.request is None, "one request per conversation at a time"
        self.request = request
        self.tail += request.new_ids.tolist()
        self._parts: list[tuple[np.ndarray, ...]] = []
        # A token may be written at every position behind the context, the slot's last one included.
        room = self._size - (self.length + len(self.tail))
        self.budget = min(request.max_tokens, room)
        self._cut = "length" if request.max_tokens <= room else "context_full"
        if self.budget <= 0:
            self._finish("context_full")

    def read(self, count: int) -> list[int]:
        """Takes the next `count` ids, at most, to be put into the cache."""
        count = min(count, self.unread)
        chunk, self.tail = self.tail[:count], self.tail[count:]
        self.length += count
        return chunk

    def write(
        self,
        token_n: np.ndarray,
        logp_mu_n: np.ndarray,
        logp_old_n: np.ndarray,
        version: int,
        stop_ids: tuple[int, ...],
    ) -> None:
        """Takes over what a burst wrote for this slot (-1 once it rested)."""
        count = int((token_n >= 0).sum())
        ids = token_n[:count]
        versions = np.full((count,), version, np.int32)
        self._parts.append((ids, logp_mu_n[:count], logp_old_n[:count], versions))
        self.length += count
        self.budget -= count
        self.tail = [int(ids[-1])]
        if self.tail[0] in stop_ids:
            self._finish("stop")
        elif self.budget == 0:
            self._finish(self._cut)

    def _finish(self, stop: str) -> None:
        request, self.request = self.request, None
        if self._parts:
            ids, mu, old, version = (np.concatenate(x) for x in zip(*self._parts, strict=True))
        else:
            ids = version = np.zeros((0,), np.int32)
            mu = old = np.zeros((0,), np.float32)
        request.future.set_result(Sampled(ids, mu, old, version, stop))

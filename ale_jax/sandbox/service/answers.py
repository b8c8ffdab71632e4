"""Requests that may be repeated: one that was answered is not carried out again."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from ale_jax.sandbox.service.errors import Refusal

Key = tuple[str, str]  # the token's name, and the id that its bearer gave the request


@dataclasses.dataclass(frozen=True)
class Answer:
    """What was sent, whole. again: nothing was done, so that a repeat is carried out anew."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    again: bool = False


@dataclasses.dataclass(frozen=True)
class _Kept:
    digest: bytes  # of the request, so that its id stands for nothing else
    answer: Answer
    at: float


class Answers:
    """A bounded store, for one event loop. Those under way are never left out of it."""

    def __init__(self, count: int, max_bytes: int, seconds: float, clock=time.monotonic):
        self._count, self._max_bytes, self._seconds = count, max_bytes, seconds
        self._clock = clock
        self._running: dict[Key, tuple[bytes, asyncio.Task[Answer]]] = {}
        self._kept: OrderedDict[Key, _Kept] = OrderedDict()  # the oldest first
        self._bytes = 0

    async def once(self, key: Key, digest: bytes, act: Callable[[], Awaitable[Answer]]) -> Answer:
        """The answer to the request `key`: of `act`, or of the time when it was made first, for
        which a repeat waits. `act` goes on if its caller goes away.

        Errors: Refusal (409) if the same id stood for another request; those of `act`.
        """
        self._drop(self._clock() - self._seconds)
        if key in self._kept:
            _check(key, self._kept[key].digest, digest)
            return self._kept[key].answer
        if key not in self._running:
            task = asyncio.ensure_future(act())
            self._running[key] = digest, task
            task.add_done_callback(lambda task: self._finish(key, digest, task))
        first, task = self._running[key]
        _check(key, first, digest)
        return await asyncio.shield(task)

    def _finish(self, key: Key, digest: bytes, task: asyncio.Task[Answer]) -> None:
        del self._running[key]
        if task.cancelled() or task.exception() or task.result().again:
            return
        self._kept[key] = _Kept(digest, task.result(), self._clock())
        self._bytes += len(task.result().body)
        while len(self._kept) > self._count or self._bytes > self._max_bytes:
            self._drop_oldest()

    def _drop(self, before: float) -> None:
        while self._kept and next(iter(self._kept.values())).at < before:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, kept = self._kept.popitem(last=False)
        self._bytes -= len(kept.answer.body)


def _check(key: Key, first: bytes, digest: bytes) -> None:
    if first != digest:
        message = f"request id {key[1]!r} was used for another request"
        raise Refusal(409, "request_id_reused", message, "take a new id for each request")

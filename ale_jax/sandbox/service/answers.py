"""Answers that are kept for a while, so that a repeated request is not executed twice."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from ale_jax.sandbox.service.protocol import Refusal

Key = tuple[str, str]  # the tenant's name, and the request id that the client chose


class Keepable(Protocol):
    """again: nothing was done, so a repeated request is executed again."""

    @property
    def body(self) -> bytes: ...

    @property
    def again(self) -> bool: ...


A = TypeVar("A", bound=Keepable)


@dataclasses.dataclass(frozen=True)
class _Kept(Generic[A]):
    digest: bytes  # of the request, to detect another one with the same id
    answer: A
    at: float


class Answers(Generic[A]):
    """A bounded store, for one event loop. Requests in progress are never dropped from it."""

    def __init__(self, count: int, max_bytes: int, seconds: float, clock=time.monotonic):
        self._count, self._max_bytes, self._seconds = count, max_bytes, seconds
        self._clock = clock
        self._running: dict[Key, tuple[bytes, asyncio.Task[A]]] = {}
        self._kept: OrderedDict[Key, _Kept[A]] = OrderedDict()  # oldest first
        self._bytes = 0
        self._cancelled: OrderedDict[Key, None] = OrderedDict()  # oldest first

    async def once(self, key: Key, digest: bytes, act: Callable[[], Awaitable[A]]) -> A:
        """Returns the answer to the request `key`: the stored one, or else the result of `act`. A
        repeat waits for a first request that is in progress. `act` continues if its caller
        disconnects.

        Errors: Refusal (409) if the id was used for a different request, or was cancelled; those of
        `act`.
        """
        if key in self._cancelled:
            raise _cancelled(key)
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
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if key in self._cancelled:
                raise _cancelled(key) from None
            raise

    def keys(self, tenant: str, prefix: str) -> list[Key]:
        """Those of the tenant's requests whose ids begin with `prefix`."""
        known = (*self._running, *self._kept)
        return [key for key in known if key[0] == tenant and key[1].startswith(prefix)]

    async def cancel(self, key: Key) -> A | None:
        """Ends what is done for the request `key`, which may still be on its way, and forgets it.
        Returns its answer if it is there already."""
        self._cancelled[key] = None
        if len(self._cancelled) > self._count:
            self._cancelled.popitem(last=False)
        if key in self._running:
            _, task = self._running[key]
            task.cancel()
            await asyncio.wait([task])
        kept = self._kept.pop(key, None)
        if kept is None:
            return None
        self._bytes -= len(kept.answer.body)
        return kept.answer

    def _finish(self, key: Key, digest: bytes, task: asyncio.Task[A]) -> None:
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
        raise Refusal(409, "request_id_reused", message, "use a new id for each request")


def _cancelled(key: Key) -> Refusal:
    return Refusal(409, "cancelled", f"request {key[1]!r} was cancelled", "use a new id")


@dataclasses.dataclass(frozen=True)
class Answer:
    """A complete response. again: nothing was done, so a repeated request is executed again."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    again: bool = False

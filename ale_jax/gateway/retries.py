"""Calls that a client may send again, without asking for another reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from fastapi import Request

from ale_jax.gateway.answers import GONE_S, answer
from ale_jax.gateway.episode import GatewayEpisode, Pending
from ale_jax.gateway.newest import MAX_CHARS, MAX_KEPT, Newest
from ale_jax.gateway.requests import ApiError, ChatRequest, ChatResult

HEADER = "Idempotency-Key"
MAX_KEY = 256  # letters


class Retries:
    """Answers of the newest calls that came with a key, by episode and key.

    Such a call goes on when its client has gone. Its answer counts as lost until the client has
    come again with the key: equal messages are no retry, as best of n has them, too. All methods
    are called by the server's thread.
    """

    def __init__(
        self,
        on_result: Callable[[ChatResult], None] = lambda result: None,
        max_kept: int = MAX_KEPT,
        max_chars: int = MAX_CHARS,
    ):
        """on_result: called once with each result, however often it is asked for."""
        self._on_result = on_result
        self._kept: Newest[_KeptCall] = Newest(max_kept, max_chars)

    async def answer(
        self, key: str, episode: GatewayEpisode, asked: ChatRequest, request: Request, model: str
    ) -> ChatResult:
        """Like `answers.answer`. ApiError (422) if the key came with another request before."""
        if len(key) > MAX_KEY:
            raise ApiError(400, f"a key may have {MAX_KEY} letters", HEADER)
        place = episode, key
        kept = self._kept.get(place)
        if kept is None or kept.has_failed:
            kept = _KeptCall(episode, asked, model)
            kept.answer.add_done_callback(partial(self._ended, place, kept))
            self._kept.keep(place, kept, asked.num_chars)
        elif kept.asked != asked:
            raise ApiError(422, "the key came with another request before", HEADER)
        return await kept.delivered_to(request)

    def _ended(
        self, place: tuple[GatewayEpisode, str], ended: _KeptCall, answer: asyncio.Future
    ) -> None:
        if not ended.has_failed:
            self._on_result(answer.result())
        elif self._kept.get(place) is ended:
            self._kept.forget(place)


class _KeptCall:
    """A call that goes on by itself."""

    def __init__(self, episode: GatewayEpisode, asked: ChatRequest, model: str):
        self.asked, self._episode = asked, episode
        self._pending: Sequence[Pending] = ()
        self._clients, self._is_lost = 0, False
        going_on = answer(episode, asked, model, _nobody_leaves, self._begun)
        self.answer = asyncio.ensure_future(going_on)

    @property
    def has_failed(self) -> bool:
        if not self.answer.done():
            return False
        return self.answer.cancelled() or self.answer.exception() is not None

    async def delivered_to(self, request: Request) -> ChatResult:
        """ApiError as for `answers.answer`, also (499) if this client has gone."""
        self._clients += 1
        self._mark(is_lost=False)
        is_delivered = False
        try:
            while not self.answer.done():
                await asyncio.wait([self.answer], timeout=GONE_S)
                if await request.is_disconnected():
                    raise ApiError(499, "the client has gone")
            is_delivered = True
            return self.answer.result()
        finally:
            self._clients -= 1
            if not is_delivered and not self._clients:
                self._mark(is_lost=True)

    def _begun(self, pending: Sequence[Pending]) -> None:
        self._pending = pending
        self._mark(self._is_lost)

    def _mark(self, is_lost: bool) -> None:
        self._is_lost = is_lost
        change = self._episode.tree.lose if is_lost else self._episode.tree.find
        for each in self._pending:
            change(each.call)


async def _nobody_leaves() -> bool:
    return False

"""What the gateway keeps of its newest calls: conversations that a client goes on with by the id of
the last response, and answers to calls that a client may send again."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Generic, TypeVar

from fastapi import Request

from ale_jax.gateway.answers import GONE_S, answer
from ale_jax.gateway.episode import GatewayEpisode, Pending
from ale_jax.gateway.messages import ChatMessage
from ale_jax.gateway.requests import ApiError, ChatRequest, ChatResult

Value = TypeVar("Value")

MAX_KEPT = 4096
MAX_CHARS = 1 << 28
HEADER = "Idempotency-Key"  # of a call that may be sent again
COUNT_HEADER = "x-stainless-retry-count"  # of OpenAI's and Anthropic's clients: how often it was
MAX_KEY = 256  # letters


class Newest(Generic[Value]):
    """The newest values, by their keys. Not thread-safe."""

    def __init__(self, max_kept: int = MAX_KEPT, max_chars: int = MAX_CHARS):
        """max_chars: of all values; what several of them share is counted in each."""
        self._max_kept, self._max_chars = max_kept, max_chars
        self._kept: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._chars = 0

    def get(self, key: Hashable) -> Value | None:
        value, _ = self._kept.get(key, (None, 0))
        return value

    def keep(self, key: Hashable, value: Value, chars: int) -> None:
        """Takes the place of the value that had this key. The oldest ones are forgotten until all
        others have room, also this one if it alone has too many characters."""
        self.forget(key)
        self._kept[key] = value, chars
        self._chars += chars
        while len(self._kept) > self._max_kept or self._chars > self._max_chars:
            self.forget(next(iter(self._kept)))

    def forget(self, key: Hashable) -> None:
        """Does nothing if there is no such value."""
        _, chars = self._kept.pop(key, (None, 0))
        self._chars -= chars


def as_sent(asked: ChatRequest, request: Request) -> ChatRequest:
    """Returns the request with what the client's headers say of it."""
    is_retry = request.headers.get(COUNT_HEADER, "0").strip() not in ("", "0")
    return dataclasses.replace(asked, is_retry=is_retry)


_History = tuple[GatewayEpisode, tuple[ChatMessage, ...]]


class Histories:
    """The messages up to each of the newest responses. Thread-safe."""

    def __init__(self, max_kept: int = MAX_KEPT, max_chars: int = MAX_CHARS):
        self._lock = threading.Lock()
        self._kept: Newest[_History] = Newest(max_kept, max_chars)

    def keep(self, id: str, episode: GatewayEpisode, messages: Sequence[ChatMessage]) -> None:
        """Keeps the messages of a request, and the response to it."""
        with self._lock:
            chars = sum(message.num_chars for message in messages)
            self._kept.keep(id, (episode, tuple(messages)), chars)

    def after(self, id: str, episode: GatewayEpisode) -> tuple[ChatMessage, ...]:
        """Returns the messages up to a response. ApiError (404) if the episode has no such
        response, or not any more."""
        if not (messages := self._find(id, episode)):
            raise ApiError(404, f"there is no response {id!r:.80}", "previous_response_id")
        return messages

    def reply(self, id: str, episode: GatewayEpisode) -> ChatMessage | None:
        """Returns the policy's words in a response; None where `after` refuses."""
        messages = self._find(id, episode)
        return messages[-1] if messages else None

    def _find(self, id: str, episode: GatewayEpisode) -> tuple[ChatMessage, ...]:
        with self._lock:
            owner, messages = self._kept.get(id) or (None, ())
        return messages if owner is episode else ()


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
        """Answers a call, as `answers.answer` does, or again. ApiError (422) if the key came with
        another request before."""
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
        """Returns the answer when it is there. ApiError as for `answers.answer`, also (499) if this
        client has gone."""
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

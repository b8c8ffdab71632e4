"""Replies that are sent while they are written."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from typing import Protocol

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ale_jax.gateway.answers import ask, cancel, head_of, read, with_choices
from ale_jax.gateway.episode import GatewayEpisode, Pending
from ale_jax.gateway.requests import ApiError, ChatRequest, ChatResult

EVENT_STREAM = "text/event-stream"


class StreamEvents(Protocol):
    """An API's events, as text. sent: of each reply, the content that was sent already."""

    def start(self, head: ChatResult) -> Iterator[str]:
        """head: of the result, without choices."""

    def content(self, head: ChatResult, number: int, more: str) -> Iterator[str]:
        """More of the content of a reply."""

    def end(self, result: ChatResult, sent: Mapping[int, str]) -> Iterator[str]:
        """All that is left."""

    def failed(self, error: ApiError) -> str: ...


async def streamed(
    episode: GatewayEpisode,
    asked: ChatRequest,
    model: str,
    events: StreamEvents,
    on_result: Callable[[ChatResult], None],
) -> StreamingResponse:
    """ApiError if the request is refused; what goes wrong later is an event. on_result: called with
    the whole result before it is told."""
    loop = asyncio.get_running_loop()
    news: asyncio.Queue[tuple[int, str]] = asyncio.Queue()

    def see(number: int, content: str) -> None:
        with contextlib.suppress(RuntimeError):  # the server is closed, and nobody listens
            loop.call_soon_threadsafe(news.put_nowait, (number, content))

    pending = await ask(episode, asked, see)
    head, undelivered = head_of(model, pending, asked), list(pending)
    told = _told(episode, asked, undelivered, news, head)
    return _Stream(_as_text(told, events, head, on_result), lambda: cancel(episode, undelivered))


class _Stream(StreamingResponse):
    """on_end: called when nobody listens any more, also if nothing was ever sent."""

    def __init__(self, events: AsyncIterator[str], on_end: Callable[[], None]):
        super().__init__(events, media_type=EVENT_STREAM)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


async def _told(
    episode: GatewayEpisode,
    asked: ChatRequest,
    undelivered: list[Pending],
    news: asyncio.Queue[tuple[int, str]],
    head: ChatResult,
) -> AsyncGenerator[tuple[int, str] | ChatResult]:
    """What the policy writes: the number of a reply and all of its content so far; at the end, the
    result. undelivered: the calls, until the result was sent."""
    replies = [asyncio.wrap_future(each.sampled) for each in undelivered]
    written = asyncio.gather(*replies, return_exceptions=True)  # `answer` raises them
    while not (written.done() and news.empty()):
        newest = asyncio.ensure_future(news.get())
        try:
            await asyncio.wait({newest, written}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            newest.cancel()  # unless it is done
        if newest.done():
            yield newest.result()
    choices = await read(episode, undelivered, asked)
    yield with_choices(head, undelivered, choices)
    undelivered.clear()


async def _as_text(
    told: AsyncGenerator[tuple[int, str] | ChatResult],
    events: StreamEvents,
    head: ChatResult,
    on_result: Callable[[ChatResult], None],
) -> AsyncIterator[str]:
    sent: defaultdict[int, str] = defaultdict(str)
    try:
        async with contextlib.aclosing(told):
            for event in events.start(head):
                yield event
            async for news in told:
                if isinstance(news, ChatResult):
                    on_result(news)
                for event in _new_events(news, events, head, sent):
                    yield event
    except ApiError as error:
        yield events.failed(error)


def _new_events(
    news: tuple[int, str] | ChatResult,
    events: StreamEvents,
    head: ChatResult,
    sent: defaultdict[int, str],
) -> Iterator[str]:
    """sent: the content of each reply so far, to which the news is added."""
    if isinstance(news, ChatResult):
        yield from events.end(news, sent)
        return
    number, content = news
    if len(content) > len(sent[number]):
        yield from events.content(head, number, content[len(sent[number]) :])
        sent[number] = content

"""Replies that are sent while they are written."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Protocol

from fastapi.responses import StreamingResponse

from ale_jax.gateway.answers import cancel, result_of
from ale_jax.gateway.episode import GatewayEpisode, Pending
from ale_jax.gateway.requests import ApiError, ChatRequest, ChatResult

EVENT_STREAM = "text/event-stream"


class StreamEvents(Protocol):
    """An API's events, as text. sent: of each reply, the content that was sent already."""

    def start(self, head: ChatResult) -> Iterator[str]:
        """head: of the result, without choices."""

    def content(self, head: ChatResult, number: int, more: str) -> Iterator[str]:
        """More of the content of a reply."""

    def end(self, result: ChatResult, sent: Sequence[str]) -> Iterator[str]:
        """All that is left."""

    def failed(self, error: ApiError) -> str: ...


async def streamed(
    episode: GatewayEpisode, asked: ChatRequest, model: str, events: StreamEvents
) -> StreamingResponse:
    """ApiError if the request is refused; what goes wrong later is an event."""
    loop = asyncio.get_running_loop()
    news: asyncio.Queue[tuple[int, str]] = asyncio.Queue()

    def see(number: int, content: str) -> None:
        with contextlib.suppress(RuntimeError):  # the server is closed, and nobody listens
            loop.call_soon_threadsafe(news.put_nowait, (number, content))

    pending = await asyncio.to_thread(episode.ask, asked, see)
    told = _told(episode, asked, pending, news, model)
    return StreamingResponse(_as_text(told, events, model, pending), media_type=EVENT_STREAM)


async def _told(
    episode: GatewayEpisode,
    asked: ChatRequest,
    pending: list[Pending],
    news: asyncio.Queue[tuple[int, str]],
    model: str,
) -> AsyncIterator[tuple[int, str] | ChatResult]:
    """What the policy writes: the number of a reply and all of its content so far; at the end, the
    result. Whoever stops listening ends the calls."""
    replies = [asyncio.wrap_future(each.sampled) for each in pending]
    written = asyncio.gather(*replies, return_exceptions=True)  # `answer` raises them
    is_answered = False
    try:
        while not (written.done() and news.empty()):
            newest = asyncio.ensure_future(news.get())
            await asyncio.wait({newest, written}, return_when=asyncio.FIRST_COMPLETED)
            if newest.done():
                yield newest.result()
            else:
                newest.cancel()
        choices = [await asyncio.to_thread(episode.answer, each, asked) for each in pending]
        is_answered = True
        yield result_of(model, pending, choices)
    finally:
        if not is_answered:
            cancel(episode, pending)


async def _as_text(
    told: AsyncIterator[tuple[int, str] | ChatResult],
    events: StreamEvents,
    model: str,
    pending: list[Pending],
) -> AsyncIterator[str]:
    sent = [""] * len(pending)
    head = result_of(model, pending, ())
    try:
        for event in events.start(head):
            yield event
        async for news in told:
            if isinstance(news, ChatResult):
                for event in events.end(news, sent):
                    yield event
                continue
            number, content = news
            if len(content) > len(sent[number]):
                for event in events.content(head, number, content[len(sent[number]) :]):
                    yield event
                sent[number] = content
    except ApiError as error:
        yield events.failed(error)

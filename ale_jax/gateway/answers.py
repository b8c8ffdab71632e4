"""Waiting for the policy's answer to a request, or sending it while it is written."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
import time
from collections import defaultdict
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Protocol

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ale_jax.gateway.episode import GatewayEpisode, Pending, See
from ale_jax.gateway.requests import (
    AUTO,
    NONE,
    ApiError,
    ChatRequest,
    ChatResult,
    Choice,
    Usage,
)

EVENT_STREAM = "text/event-stream"
GONE_S = 0.5  # between two looks whether the client is still there
# What is read or written faster than another thread is woken; longer texts would keep the server
# from all other calls.
SHORT_CHARS, SHORT_TOKENS = 16_384, 1024


async def answer(
    episode: GatewayEpisode,
    asked: ChatRequest,
    model: str,
    is_gone: Callable[[], Awaitable[bool]],
    on_begin: Callable[[Sequence[Pending]], None] = lambda pending: None,
) -> ChatResult:
    """Waits for the policy. A client that is gone meanwhile is not waited for.

    ApiError if the request is refused or fails, or (499) the client has gone.
    """
    pending = await ask(episode, asked)
    try:
        on_begin(pending)
        await _sampled(pending, is_gone)
        choices = await read(episode, pending, asked)
        # The client may have left between the last look and the end of the reply.
        await _require_client(is_gone)
    except BaseException:
        cancel(episode, pending)
        raise
    return with_choices(head_of(model, pending, asked), pending, choices)


async def ask(episode: GatewayEpisode, asked: ChatRequest, see: See | None = None) -> list[Pending]:
    """Asks the policy as `GatewayEpisode.ask` does, without blocking."""
    if _is_short(asked):
        return episode.ask(asked, see)
    return await asyncio.to_thread(episode.ask, asked, see)


async def read(
    episode: GatewayEpisode, pending: Sequence[Pending], asked: ChatRequest
) -> list[Choice]:
    """Returns the replies of calls that are sampled, without blocking. ApiError as for
    `GatewayEpisode.answer`."""
    if len(pending) == 1 and pending[0].num_written <= SHORT_TOKENS:
        return [episode.answer(pending[0], asked)]
    return [await asyncio.to_thread(episode.answer, each, asked) for each in pending]


def _is_short(asked: ChatRequest) -> bool:
    if asked.schema is not None or asked.tool_choice not in (AUTO, NONE):
        return False  # a grammar may take long to compile
    if asked.options.n > 1 or len(asked.prompts) > 1:
        return False
    return asked.num_chars <= SHORT_CHARS


def cancel(episode: GatewayEpisode, pending: Sequence[Pending], was_sent: bool = False) -> None:
    """Gives up calls whose client does not get their answers. was_sent: as in `Call`."""
    for each in pending:
        episode.cancel(each, was_sent)


def head_of(model: str, pending: Sequence[Pending], asked: ChatRequest) -> ChatResult:
    """Returns what is known of a result before anything is written."""
    of_prompts = pending[:: asked.options.n]
    prompt = sum(len(each.call.context_ids()) for each in of_prompts)
    usage = Usage(prompt, 0, cached=prompt - sum(each.num_new for each in of_prompts))
    return ChatResult(secrets.token_hex(12), int(time.time()), model, (), usage)


def with_choices(
    head: ChatResult, pending: Sequence[Pending], choices: Sequence[Choice]
) -> ChatResult:
    """Completes the head of a result by its replies, and counts their tokens."""
    written = sum(each.num_written for each in pending)
    usage = dataclasses.replace(head.usage, completion=written)
    return dataclasses.replace(head, choices=tuple(choices), usage=usage)


async def _sampled(pending: Sequence[Pending], is_gone: Callable[[], Awaitable[bool]]) -> None:
    """Returns when the engine has done with all calls. ApiError (499) if the client has gone."""
    waiting = {asyncio.wrap_future(each.sampled) for each in pending}
    while waiting:
        done, waiting = await asyncio.wait(waiting, timeout=GONE_S)
        for each in done:
            each.exception()  # which `GatewayEpisode.answer` raises
        if waiting:
            await _require_client(is_gone)


async def _require_client(is_gone: Callable[[], Awaitable[bool]]) -> None:
    if await is_gone():
        raise ApiError(499, "the client has gone")


class StreamEvents(Protocol):
    """An API's events, as text. sent: of each reply, the content that was sent already."""

    def start(self, head: ChatResult) -> Iterator[str]:
        """Yields how the stream begins. head: of the result, without choices."""

    def content(self, head: ChatResult, number: int, more: str) -> Iterator[str]:
        """Yields more of the content of a reply."""

    def end(self, result: ChatResult, sent: Mapping[int, str]) -> Iterator[str]:
        """Yields all that is left of the result."""

    def failed(self, error: ApiError) -> str: ...


async def streamed(
    episode: GatewayEpisode,
    asked: ChatRequest,
    model: str,
    events: StreamEvents,
    on_result: Callable[[ChatResult], None],
) -> StreamingResponse:
    """Answers a request while the policy writes. ApiError if the request is refused; what goes
    wrong later is an event. on_result: called with the whole result before it is told."""
    loop = asyncio.get_running_loop()
    news: asyncio.Queue[tuple[int, str]] = asyncio.Queue()

    def see(number: int, content: str) -> None:
        with contextlib.suppress(RuntimeError):  # the server is closed, and nobody listens
            loop.call_soon_threadsafe(news.put_nowait, (number, content))

    pending = await ask(episode, asked, see)
    head, undelivered = head_of(model, pending, asked), list(pending)
    told, sent = _told(episode, asked, undelivered, news, head), _Sent(not asked.tools)

    def end() -> None:
        cancel(episode, undelivered, sent.may_be_read)

    return _Stream(_as_text(told, events, head, on_result, sent), end)


@dataclasses.dataclass
class _Sent:
    """content: of each reply so far. is_told: whether the client acts on content alone, as it has
    no tools; calls come at the end. may_be_read: whether what it acts on was sent, or a part of it.
    """

    is_told: bool
    content: defaultdict[int, str] = dataclasses.field(default_factory=lambda: defaultdict(str))
    may_be_read: bool = False


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
        awaited: set[asyncio.Future[Any]] = {newest, written}
        try:
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
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
    sent: _Sent,
) -> AsyncIterator[str]:
    try:
        async with contextlib.aclosing(told):
            for event in events.start(head):
                yield event
            async for news in told:
                if isinstance(news, ChatResult):
                    on_result(news)
                for event in _new_events(news, events, head, sent.content):
                    sent.may_be_read |= sent.is_told or isinstance(news, ChatResult)
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

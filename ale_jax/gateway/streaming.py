"""Sending the policy's answer to a request while it is written.

Thoughts and content are sent as they come, as far as they are sure, and calls at the end. While
nothing can be sent, events that say nothing tell the client that its call goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Protocol

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ale_jax.gateway.answers import ask, cancel, head_of, read, with_choices
from ale_jax.gateway.episode import GatewayEpisode, Pending
from ale_jax.gateway.formats.reply import Preview
from ale_jax.gateway.requests import ApiError, ChatRequest, ChatResult

EVENT_STREAM = "text/event-stream"
SILENT_S = 1.0  # in which nothing is sent, at most; clients hang up after as little as 3 s


class StreamEvents(Protocol):
    """An API's events, as text. head: of the result, without choices."""

    def start(self, head: ChatResult) -> Iterator[str]:
        """Yields how the stream begins."""

    def silence(self, head: ChatResult) -> Iterator[str]:
        """Yields what says nothing, and what clients take for a sign of life."""

    def thoughts(self, head: ChatResult, number: int, more: str) -> Iterator[str]:
        """Yields more of the thoughts of a reply. All of them come before its content."""

    def content(self, head: ChatResult, number: int, more: str) -> Iterator[str]:
        """Yields more of the content of a reply."""

    def end(self, result: ChatResult) -> Iterator[str]:
        """Yields what is left of the result, of which all thoughts and all content were sent."""

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
    news = _News()
    pending = await ask(episode, asked, partial(news.see, asyncio.get_running_loop()))
    telling = _Telling(episode, asked, pending, head_of(model, pending, asked), events)
    return _Stream(telling.texts(news, on_result), telling.end)


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


class _News:
    """What is sure of each reply by now. Older news are forgotten, as the newest have them."""

    def __init__(self) -> None:
        self._said: dict[int, Preview] = {}
        self._changed = asyncio.Event()

    def see(self, loop: asyncio.AbstractEventLoop, number: int, said: Preview) -> None:
        """Called by the engine's thread. loop: the server's."""
        with contextlib.suppress(RuntimeError):  # the server is closed, and nobody listens
            loop.call_soon_threadsafe(self._tell, number, said)

    def _tell(self, number: int, said: Preview) -> None:
        self._said[number] = said
        self._changed.set()

    def end(self, written: asyncio.Future) -> None:
        """Says that there will be no more."""
        self._changed.set()

    async def before(self, deadline: float) -> dict[int, Preview]:
        """Waits for news, for the end or for the deadline. Returns the news by reply."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._changed.wait()
        self._changed.clear()
        said, self._said = self._said, {}
        return said


class _Telling:
    """What a client was told of the replies to its request."""

    def __init__(
        self,
        episode: GatewayEpisode,
        asked: ChatRequest,
        pending: list[Pending],
        head: ChatResult,
        events: StreamEvents,
    ):
        self._episode, self._asked, self._events = episode, asked, events
        self._undelivered, self._head = list(pending), head
        self._sent: defaultdict[int, Preview] = defaultdict(Preview)
        self._may_be_read = False  # something that the client acts on, or a part of it

    def end(self) -> None:
        """Gives up what was not delivered."""
        cancel(self._episode, self._undelivered, self._may_be_read)

    async def texts(
        self, news: _News, on_result: Callable[[ChatResult], None]
    ) -> AsyncIterator[str]:
        """Yields the events. on_result: as in `streamed`."""
        loop, events, head = asyncio.get_running_loop(), self._events, self._head
        replies = [asyncio.wrap_future(each.sampled) for each in self._undelivered]
        written = asyncio.gather(*replies, return_exceptions=True)  # `read` raises them
        written.add_done_callback(news.end)
        try:
            for event in events.start(head):
                yield event
            deadline = loop.time() + SILENT_S
            while not written.done():
                said = await news.before(deadline)
                new = [event for each in said.items() for event in self._more(*each)]
                if not new and loop.time() >= deadline:
                    new = list(events.silence(head))
                for event in new:
                    yield event
                if new:
                    deadline = loop.time() + SILENT_S
            choices = await read(self._episode, self._undelivered, self._asked)
            result = with_choices(head, self._undelivered, choices)
            on_result(result)
            for event in self._rest(result):
                self._may_be_read = True  # without tools, content is all that a client acts on
                yield event
            self._undelivered.clear()
        except ApiError as error:
            yield events.failed(error)

    def _more(self, number: int, said: Preview) -> Iterator[str]:
        sent = self._sent[number]
        thoughts, content = said.thoughts[len(sent.thoughts) :], said.content[len(sent.content) :]
        self._sent[number] = Preview(sent.thoughts + thoughts, sent.content + content)
        if thoughts:
            yield from self._events.thoughts(self._head, number, thoughts)
        if content:
            # A client without tools acts on content alone. Calls come at the end.
            self._may_be_read |= not self._asked.tools
            yield from self._events.content(self._head, number, content)

    def _rest(self, result: ChatResult) -> Iterator[str]:
        for number, choice in enumerate(result.choices):
            said = Preview(choice.message.reasoning, choice.message.content)
            yield from self._more(number, said)
        yield from self._events.end(result)

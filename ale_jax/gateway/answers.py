"""Waiting for the policy's answer to a request."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence

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
    for each in waiting:
        each.add_done_callback(_read_exception)
    while waiting:
        _, waiting = await asyncio.wait(waiting, timeout=GONE_S)
        if waiting:
            await _require_client(is_gone)


def _read_exception(sampled: asyncio.Future) -> None:
    """`GatewayEpisode.answer` raises it, unless the client has gone, and nobody wants to know."""
    if not sampled.cancelled():
        sampled.exception()


async def _require_client(is_gone: Callable[[], Awaitable[bool]]) -> None:
    if await is_gone():
        raise ApiError(499, "the client has gone")

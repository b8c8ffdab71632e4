"""Waiting for the policy's answer to a request."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import time
from collections.abc import Sequence

from fastapi import Request

from ale_jax.gateway.episode import GatewayEpisode, Pending
from ale_jax.gateway.requests import ApiError, ChatRequest, ChatResult, Choice, Usage

GONE_S = 0.5  # between two looks whether the client is still there


async def answer(
    episode: GatewayEpisode, asked: ChatRequest, request: Request, model: str
) -> ChatResult:
    """Waits for the policy. A client that is gone meanwhile is not waited for.

    ApiError if the request is refused or fails.
    """
    pending = await asyncio.to_thread(episode.ask, asked)
    try:
        await _sampled(request, pending)
        choices = [await asyncio.to_thread(episode.answer, each, asked) for each in pending]
    except BaseException:
        cancel(episode, pending)
        raise
    return with_choices(head_of(model, pending), pending, choices)


def cancel(episode: GatewayEpisode, pending: Sequence[Pending]) -> None:
    for each in pending:
        episode.cancel(each)


def head_of(model: str, pending: Sequence[Pending]) -> ChatResult:
    """What is known of a result before anything is written."""
    prompt = len(pending[0].call.context_ids())
    usage = Usage(prompt, 0, cached=prompt - pending[0].num_new)
    return ChatResult(secrets.token_hex(12), int(time.time()), model, (), usage)


def with_choices(
    head: ChatResult, pending: Sequence[Pending], choices: Sequence[Choice]
) -> ChatResult:
    written = sum(len(each.call.sampled.ids) for each in pending)
    usage = dataclasses.replace(head.usage, completion=written)
    return dataclasses.replace(head, choices=tuple(choices), usage=usage)


async def _sampled(request: Request, pending: Sequence[Pending]) -> None:
    """Returns when the engine has done with all calls. ApiError (499) if the client has gone."""
    waiting = [asyncio.wrap_future(each.sampled) for each in pending]
    while waiting:
        done, waiting = await asyncio.wait(waiting, timeout=GONE_S)
        for each in done:
            each.exception()  # which `GatewayEpisode.answer` raises
        if waiting and await request.is_disconnected():
            raise ApiError(499, "the client has gone")

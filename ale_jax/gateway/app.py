"""The gateway as an ASGI application: any agent that speaks OpenAI's or Anthropic's API."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ale_jax.gateway.api import anthropic_messages, openai_chat
from ale_jax.gateway.episode import GatewayEpisode, Pending
from ale_jax.gateway.episodes import Episodes
from ale_jax.gateway.requests import ApiError, ChatRequest, ChatResult, Usage

MESSAGES = "/v1/messages"  # below it, errors have Anthropic's shape
GONE_S = 0.5  # between two looks whether the client is still there
EVENT_STREAM = "text/event-stream"


def make_app(episodes: Episodes, model: str) -> FastAPI:
    """model: the name under which the policy is listed."""
    app = FastAPI(title="ALE-JAX gateway", docs_url=None, redoc_url=None)

    @app.get("/v1/models")
    async def list_models(request: Request) -> dict[str, Any]:
        """The policy, whatever its clients call it."""
        _episode(episodes, request)
        listed = {"id": model, "object": "model", "created": 0, "owned_by": "ale-jax"}
        return {"object": "list", "data": [listed]}

    @app.post("/v1/chat/completions")
    async def complete_chat(body: openai_chat.ChatBody, request: Request) -> Response:
        """OpenAI's chat completions."""
        asked = openai_chat.chat_request(body)
        result = await _answer(_episode(episodes, request), asked, request, model)
        if not asked.stream:
            return JSONResponse(openai_chat.completion(result))
        return _stream(_chat_events(result, asked))

    @app.post(MESSAGES)
    async def create_message(body: anthropic_messages.MessagesBody, request: Request) -> Response:
        """Anthropic's messages."""
        asked = anthropic_messages.chat_request(body)
        result = await _answer(_episode(episodes, request), asked, request, model)
        if not asked.stream:
            return JSONResponse(anthropic_messages.message(result))
        return _stream(_message_events(result))

    @app.post(f"{MESSAGES}/count_tokens")
    async def count_tokens(body: anthropic_messages.CountBody, request: Request) -> dict[str, int]:
        """The tokens that the messages would be read as."""
        asked = anthropic_messages.chat_request(body)
        return {"input_tokens": _episode(episodes, request).count_tokens(asked)}

    app.add_exception_handler(ApiError, _show_error)
    app.add_exception_handler(RequestValidationError, _show_invalid)
    app.add_exception_handler(HTTPException, _show_http)
    return app


def _episode(episodes: Episodes, request: Request) -> GatewayEpisode:
    """OpenAI's clients send a bearer token, Anthropic's a key."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer":
        token = request.headers.get("x-api-key", "")
    return episodes.admit(token.strip())


async def _answer(
    episode: GatewayEpisode, asked: ChatRequest, request: Request, model: str
) -> ChatResult:
    """Waits for the policy. A client that is gone meanwhile is not waited for."""
    pending = await asyncio.to_thread(episode.ask, asked)
    try:
        await _sampled(request, pending)
        choices = [await asyncio.to_thread(episode.answer, each, asked) for each in pending]
    except BaseException:
        for each in pending:
            episode.cancel(each)
        raise
    return ChatResult(
        secrets.token_hex(12),
        int(time.time()),
        model,
        tuple(choices),
        _usage(pending),
    )


async def _sampled(request: Request, pending: list[Pending]) -> None:
    """Returns when the engine has done with all calls. ApiError (499) if the client has gone."""
    waiting = [asyncio.wrap_future(each.sampled) for each in pending]
    while waiting:
        done, waiting = await asyncio.wait(waiting, timeout=GONE_S)
        for each in done:
            each.exception()  # which `answer` raises
        if waiting and await request.is_disconnected():
            raise ApiError(499, "the client has gone")


def _usage(pending: list[Pending]) -> Usage:
    prompt = len(pending[0].call.context_ids())
    written = sum(len(each.call.sampled.ids) for each in pending)
    return Usage(prompt, written, cached=prompt - pending[0].num_new)


def _chat_events(result: ChatResult, asked: ChatRequest) -> Iterator[str]:
    for number, choice in enumerate(result.choices):
        delta: dict[str, Any] = {"role": "assistant", "content": choice.message.content}
        if choice.message.reasoning:
            delta["reasoning_content"] = choice.message.reasoning
        if choice.message.tool_calls:
            delta["tool_calls"] = openai_chat.call_deltas(choice.message.tool_calls)
        yield openai_chat.sse(openai_chat.chunk(result, number, delta))
        yield openai_chat.sse(openai_chat.chunk(result, number, {}, choice.finish))
    if asked.with_usage:
        yield openai_chat.sse(openai_chat.usage_chunk(result))
    yield openai_chat.DONE


def _message_events(result: ChatResult) -> Iterator[str]:
    yield anthropic_messages.sse(anthropic_messages.started(result))
    for index, block in enumerate(anthropic_messages.message(result)["content"]):
        yield from map(anthropic_messages.sse, anthropic_messages.block_events(index, block))
    yield from map(anthropic_messages.sse, anthropic_messages.ended(result))


def _stream(events: Iterator[str]) -> StreamingResponse:
    return StreamingResponse(events, media_type=EVENT_STREAM)


async def _show_error(request: Request, failed: ApiError) -> JSONResponse:
    shape: Callable[[ApiError], dict[str, Any]] = openai_chat.error
    if request.url.path.startswith(MESSAGES):
        shape = anthropic_messages.error
    headers = {} if failed.retry_after is None else {"Retry-After": str(failed.retry_after)}
    return JSONResponse(shape(failed), failed.status, headers)


async def _show_invalid(request: Request, error: RequestValidationError) -> JSONResponse:
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"] if part != "body")
    return await _show_error(request, ApiError(400, f"{field}: {first['msg']}", field))


async def _show_http(request: Request, error: HTTPException) -> JSONResponse:
    return await _show_error(request, ApiError(error.status_code, str(error.detail)))

"""The gateway as an ASGI application: any agent that speaks OpenAI's or Anthropic's API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from ale_jax.errors import RolloutsFailed
from ale_jax.gateway.answers import answer
from ale_jax.gateway.api import (
    anthropic_messages,
    openai_chat,
    openai_completions,
    openai_responses,
    responses_events,
    responses_tools,
)
from ale_jax.gateway.episode import GatewayEpisode
from ale_jax.gateway.episodes import Episodes, Guard, episode_of
from ale_jax.gateway.kept_calls import HEADER, Histories, Retries, as_sent
from ale_jax.gateway.metrics import (
    HEALTH,
    LOAD_PAGE,
    METRICS,
    PAGE_HEADERS,
    GatewayMetrics,
    Measure,
    load_page,
)
from ale_jax.gateway.models import Models
from ale_jax.gateway.requests import ApiError, ChatRequest, ChatResult, ContextFull
from ale_jax.gateway.streaming import EVENT_STREAM, StreamEvents, streamed

MESSAGES = "/v1/messages"  # below it, errors have Anthropic's shape
RESPONSES = "/v1/responses"


def make_app(
    episodes: Episodes,
    model: str,
    engine_counts: Callable[[], Mapping[str, float]] = dict,
    check: Callable[[], None] = lambda: None,
    others: Mapping[str, GatewayEpisode] = MappingProxyType({}),
) -> FastAPI:
    """Makes the application. model: the name under which the policy is listed. engine_counts: what
    the engine has done since its start, for the metrics. check: raises RolloutsFailed if it will
    not answer any more. others: further policies by their names, for the clients of any episode."""
    app = FastAPI(title="ALE-JAX gateway", docs_url=None, redoc_url=None)
    histories, metrics = Histories(), GatewayMetrics(engine_counts)
    retries, models = Retries(metrics.count), Models(model, others)

    async def answered(asked: ChatRequest, request: Request) -> ChatResult:
        episode, name = models.chosen(asked.model, request)
        if key := request.headers.get(HEADER):
            return await retries.answer(key, episode, asked, request, name)
        result = await answer(episode, asked, name, request.is_disconnected)
        metrics.count(result)
        return result

    async def answered_in_parts(
        asked: ChatRequest,
        request: Request,
        events: StreamEvents,
        on_result: Callable[[ChatResult], None] = metrics.count,
    ) -> Response:
        episode, name = models.chosen(asked.model, request)
        return await streamed(episode, asked, name, events, on_result)

    @app.get(HEALTH)
    async def say_that_it_answers() -> dict[str, str]:
        """For load balancers and launchers."""
        try:
            check()
        except RolloutsFailed as error:
            raise ApiError(503, f"the policy's engine does not answer: {error}") from error
        return {"status": "ok"}

    @app.get(METRICS)
    async def show_metrics() -> Response:
        """For Prometheus."""
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @app.get(LOAD_PAGE)
    async def show_load() -> Response:
        """For people."""
        return HTMLResponse(load_page(metrics, model), headers=PAGE_HEADERS)

    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        """The policies that clients may choose."""
        return {"object": "list", "data": models.listed()}

    @app.post("/v1/chat/completions")
    async def complete_chat(body: openai_chat.ChatBody, request: Request) -> Response:
        """OpenAI's chat completions."""
        asked = as_sent(openai_chat.chat_request(body), request)
        custom = openai_chat.custom_names(body)
        if asked.stream:
            events = openai_chat.ChatEvents(asked.with_usage, custom)
            return await answered_in_parts(asked, request, events)
        result = await answered(asked, request)
        return JSONResponse(openai_chat.completion(result, custom))

    @app.post("/v1/completions")
    async def complete_text(body: openai_completions.CompletionsBody, request: Request) -> Response:
        """OpenAI's text completions."""
        asked = as_sent(openai_completions.completion_request(body), request)
        echoed = openai_completions.echoes(body)
        if asked.stream:
            events = openai_completions.CompletionsEvents(body, echoed)
            return await answered_in_parts(asked, request, events)
        result = await answered(asked, request)
        return JSONResponse(openai_completions.completion(result, echoed))

    @app.post(RESPONSES)
    async def create_response(body: openai_responses.ResponsesBody, request: Request) -> Response:
        """OpenAI's responses. A client may go on with another model than it began with."""
        episode = episode_of(request)
        previous = body.previous_response_id
        translated = openai_responses.chat_request(
            body,
            histories.after(previous, episode) if previous else (),
            lambda response: histories.reply(response, episode),
        )
        asked = as_sent(translated, request)

        def keep(result: ChatResult) -> None:
            if body.store is not False:
                messages = openai_responses.history(body, asked, result)
                histories.keep(openai_responses.response_id(result), episode, messages)

        def count_and_keep(result: ChatResult) -> None:
            metrics.count(result)
            keep(result)

        if asked.stream:
            events = responses_events.ResponsesEvents(body)
            try:
                return await answered_in_parts(asked, request, events, count_and_keep)
            except ContextFull as error:  # Codex looks for it in a stream only
                return Response(events.failed(error), media_type=EVENT_STREAM)
        result = await answered(asked, request)
        keep(result)
        items = list(openai_responses.output_items(result, responses_tools.origins(body.tools)))
        return JSONResponse(openai_responses.response(result, body, items))

    @app.post(MESSAGES)
    async def create_message(body: anthropic_messages.MessagesBody, request: Request) -> Response:
        """Anthropic's messages."""
        asked = as_sent(anthropic_messages.chat_request(body), request)
        if asked.stream:
            events = anthropic_messages.MessagesEvents()
            return await answered_in_parts(asked, request, events)
        result = await answered(asked, request)
        return JSONResponse(anthropic_messages.message(result))

    @app.post(f"{MESSAGES}/count_tokens")
    async def count_tokens(body: anthropic_messages.CountBody, request: Request) -> dict[str, int]:
        """The tokens that the messages would be read as."""
        asked = anthropic_messages.chat_request(body)
        # In a thread, as a long prompt takes seconds, in which no other call would be answered.
        episode, _ = models.chosen(asked.model, request)
        counted = await asyncio.to_thread(episode.count_tokens, asked)
        return {"input_tokens": counted}

    app.add_middleware(Guard, episodes=episodes, refuse=_show_error)
    paths = frozenset(route.path for route in app.routes if isinstance(route, Route))
    app.add_middleware(Measure, metrics=metrics, paths=paths)
    app.exception_handler(ApiError)(_show_error)
    app.exception_handler(RequestValidationError)(_show_invalid)
    app.exception_handler(HTTPException)(_show_http)
    app.exception_handler(Exception)(_show_bug)
    return app


async def _show_error(request: Request, failed: ApiError) -> JSONResponse:
    shape: Callable[[ApiError], dict[str, Any]] = openai_chat.error
    if request.url.path.startswith(MESSAGES):
        shape = anthropic_messages.error
    status = failed.status
    if status == 403 and request.url.path == RESPONSES:
        status = 400  # Codex repeats a call that gets any other status
    headers = {} if failed.retry_after is None else {"Retry-After": str(failed.retry_after)}
    return JSONResponse(shape(failed), status, headers)


async def _show_invalid(request: Request, error: RequestValidationError) -> JSONResponse:
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"] if part != "body")
    return await _show_error(request, ApiError(400, f"{field}: {first['msg']}", field))


async def _show_http(request: Request, error: HTTPException) -> JSONResponse:
    return await _show_error(request, ApiError(error.status_code, str(error.detail)))


async def _show_bug(request: Request, error: Exception) -> JSONResponse:
    """The server logs its traceback as well."""
    return await _show_error(request, ApiError(500, f"the gateway failed: {type(error).__name__}"))

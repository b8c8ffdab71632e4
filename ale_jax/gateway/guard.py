"""Who may call the gateway, decided before anything that a client sends is read."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ale_jax.gateway.episode import GatewayEpisode
from ale_jax.gateway.episodes import Episodes
from ale_jax.gateway.metrics import OPEN
from ale_jax.gateway.requests import ApiError

MAX_BODY_BYTES = 64 << 20

Refuse = Callable[[Request, ApiError], Awaitable[Response]]


class Guard:
    """ASGI middleware: finds the episode that a call belongs to, and bounds the call's body.

    refuse: the answer to a call that is not admitted.
    """

    def __init__(self, app: ASGIApp, episodes: Episodes, refuse: Refuse):
        self._app, self._episodes, self._refuse = app, episodes, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        with contextlib.ExitStack() as call:
            try:
                admitted = self._episodes.admitted(_token(request))
                request.state.episode = call.enter_context(admitted)
            except ApiError as error:
                response = await self._refuse(request, error)
                await response(scope, receive, send)
                return
            await self._app(scope, _bounded(receive), send)


def episode_of(request: Request) -> GatewayEpisode:
    """The episode that the guard has found."""
    return request.state.episode


def _token(request: Request) -> str:
    """OpenAI's clients send a bearer token, Anthropic's a key."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer":
        token = request.headers.get("x-api-key", "")
    return token.strip()


def _bounded(receive: Receive) -> Receive:
    total = 0

    async def receive_more() -> Message:
        nonlocal total
        message = await receive()
        total += len(message.get("body", b""))
        if total > MAX_BODY_BYTES:
            raise HTTPException(413, f"a request may have {MAX_BODY_BYTES} bytes")
        return message

    return receive_more

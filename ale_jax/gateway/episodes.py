"""Which episode a client belongs to, by its token, and who may call: decided before anything that a
client sends is read."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ale_jax.gateway.custody.calls import Branch
from ale_jax.gateway.custody.token_tree import BranchChoice
from ale_jax.gateway.episode import GatewayEpisode
from ale_jax.gateway.metrics import OPEN
from ale_jax.gateway.requests import ApiError

TOKEN_BYTES = 24
RETRY_AFTER_S = 1  # for a call that found too many others
MOST_CALLS = 64  # of an episode together, so that none takes the place of all others
MAX_BODY_BYTES = 64 << 20
BODY_S = 60.0  # from a request's headers to the end of its body
KEPT_ENDED = 4096  # tokens of ended episodes that are still known

Refuse = Callable[[Request, ApiError], Awaitable[Response]]


class Episodes:
    """Thread-safe. A token is unknown (401), of an episode that is open, or of one that has ended
    (410)."""

    def __init__(self, most_calls: int = MOST_CALLS) -> None:
        """most_calls: of an episode that may be in progress together."""
        self._most_calls = most_calls
        self._calls: Counter[GatewayEpisode] = Counter()  # in progress
        self._lock = threading.Lock()
        self._open: dict[bytes, GatewayEpisode] = {}  # by their tokens' hashes
        self._ended: dict[bytes, None] = {}

    def open(self, episode: GatewayEpisode, token: str = "") -> str:
        """Returns the token by which its agents call the gateway. token: empty for a new one."""
        token = token or secrets.token_urlsafe(TOKEN_BYTES)
        with self._lock:
            assert _hash(token) not in self._open, "a token is used once"
            self._open[_hash(token)] = episode
        return token

    def end(self, token: str, choice: BranchChoice) -> list[Branch]:
        """Ends an open episode; returns what to train on."""
        with self._lock:
            episode = self._open.pop(_hash(token))
            self._ended[_hash(token)] = None
            while len(self._ended) > KEPT_ENDED:
                del self._ended[next(iter(self._ended))]
        return episode.end(choice)

    @contextlib.contextmanager
    def admitted(self, token: str) -> Iterator[GatewayEpisode]:
        """Admits a call to its episode, which ends with the block. ApiError as from `find`, or 429
        if the episode has as many calls as it may have."""
        episode = self.find(token)
        with self._lock:
            if (calls := self._calls[episode]) >= self._most_calls:
                text = f"the policy has {calls} calls to answer, and takes no more"
                raise ApiError(429, text, retry_after=RETRY_AFTER_S)
            self._calls[episode] += 1
        try:
            yield episode
        finally:
            with self._lock:
                self._calls[episode] -= 1
                self._calls += Counter()  # forgets the episode if that was its last one

    def find(self, token: str) -> GatewayEpisode:
        """Returns the open episode of a token. ApiError: 401 if it is unknown, 410 if it has
        ended."""
        with self._lock:
            episode, has_ended = self._open.get(_hash(token)), _hash(token) in self._ended
        if has_ended:
            raise ApiError(410, "the episode has ended")
        if episode is None:
            raise ApiError(401, "the token is not that of an episode")
        return episode


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
    """Returns the episode that the guard has found."""
    return request.state.episode


def _token(request: Request) -> str:
    """OpenAI's clients send a bearer token, Anthropic's a key."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer":
        token = request.headers.get("x-api-key", "")
    return token.strip()


def _bounded(receive: Receive) -> Receive:
    total, is_complete = 0, False
    deadline = asyncio.get_running_loop().time() + BODY_S

    async def receive_more() -> Message:
        nonlocal total, is_complete
        try:
            async with asyncio.timeout_at(None if is_complete else deadline):
                message = await receive()
        except TimeoutError as error:
            text = f"the body of a request must arrive within {BODY_S:g} s"
            raise HTTPException(408, text) from error
        is_complete = not message.get("more_body", False)
        total += len(message.get("body", b""))
        if total > MAX_BODY_BYTES:
            raise HTTPException(413, f"a request may have {MAX_BODY_BYTES} bytes")
        return message

    return receive_more


def _hash(token: str) -> bytes:
    """Looking up a token itself would tell, by the time it takes, how much of a guess is right."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()

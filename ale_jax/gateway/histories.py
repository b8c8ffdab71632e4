"""Conversations that a client goes on with by the id of the last response."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ale_jax.gateway.episode import GatewayEpisode
from ale_jax.gateway.messages import ChatMessage
from ale_jax.gateway.newest import MAX_CHARS, MAX_KEPT, Newest
from ale_jax.gateway.requests import ApiError

_History = tuple[GatewayEpisode, tuple[ChatMessage, ...]]


class Histories:
    """The messages up to each of the newest responses. Thread-safe."""

    def __init__(self, max_kept: int = MAX_KEPT, max_chars: int = MAX_CHARS):
        self._lock = threading.Lock()
        self._kept: Newest[_History] = Newest(max_kept, max_chars)

    def keep(self, id: str, episode: GatewayEpisode, messages: Sequence[ChatMessage]) -> None:
        """messages: of the request, and the response."""
        with self._lock:
            chars = sum(message.num_chars for message in messages)
            self._kept.keep(id, (episode, tuple(messages)), chars)

    def after(self, id: str, episode: GatewayEpisode) -> tuple[ChatMessage, ...]:
        """ApiError (404) if the episode has no such response, or not any more."""
        with self._lock:
            owner, messages = self._kept.get(id) or (None, ())
        if owner is not episode:
            raise ApiError(404, f"there is no response {id!r:.80}", "previous_response_id")
        return messages

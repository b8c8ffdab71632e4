"""Conversations that a client goes on with by the id of the last response."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from ale_jax.gateway.episode import GatewayEpisode
from ale_jax.gateway.messages import ChatMessage
from ale_jax.gateway.requests import ApiError

MAX_KEPT = 4096
MAX_CHARS = 1 << 28  # of all messages; those that several histories share are counted in each


class Histories:
    """The messages up to each of the newest responses. Thread-safe."""

    def __init__(self, max_kept: int = MAX_KEPT, max_chars: int = MAX_CHARS):
        self._max_kept, self._max_chars = max_kept, max_chars
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[GatewayEpisode, tuple[ChatMessage, ...]]] = OrderedDict()
        self._chars = 0

    def keep(self, id: str, episode: GatewayEpisode, messages: Sequence[ChatMessage]) -> None:
        """messages: of the request, and the response."""
        with self._lock:
            self._kept[id] = episode, tuple(messages)
            self._chars += _chars(messages)
            while len(self._kept) > self._max_kept or self._chars > self._max_chars:
                _, (_, forgotten) = self._kept.popitem(last=False)
                self._chars -= _chars(forgotten)

    def after(self, id: str, episode: GatewayEpisode) -> tuple[ChatMessage, ...]:
        """ApiError (404) if the episode has no such response, or not any more."""
        with self._lock:
            owner, messages = self._kept.get(id, (None, ()))
        if owner is not episode:
            raise ApiError(404, f"there is no response {id!r:.80}", "previous_response_id")
        return messages


def _chars(messages: Sequence[ChatMessage]) -> int:
    calls = (call for message in messages for call in message.tool_calls)
    texts = sum(len(message.content) + len(message.reasoning) for message in messages)
    return texts + sum(len(call.arguments) for call in calls)

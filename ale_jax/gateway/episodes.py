"""Which episode a client belongs to, by its token."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
from collections.abc import Iterator

from ale_jax.gateway.custody.token_tree import Branch, BranchChoice
from ale_jax.gateway.episode import GatewayEpisode
from ale_jax.gateway.requests import ApiError

TOKEN_BYTES = 24
RETRY_AFTER_S = 1  # for a call that found too many others
KEPT_ENDED = 4096  # tokens of ended episodes that are still known


class Episodes:
    """Thread-safe. A token is unknown (401), of an episode that is open, or of one that has ended
    (410)."""

    def __init__(self, most_calls: int | None = None) -> None:
        """most_calls: that may be in progress together; None for no limit."""
        self._most_calls, self._calls = most_calls, 0
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
        """The episode of a call, which ends with the block. ApiError as from `find`, or 429 if
        there are as many calls as there may be."""
        episode = self.find(token)
        with self._lock:
            if self._most_calls is not None and self._calls >= self._most_calls:
                text = f"the policy has {self._calls} calls to answer, and takes no more"
                raise ApiError(429, text, retry_after=RETRY_AFTER_S)
            self._calls += 1
        try:
            yield episode
        finally:
            with self._lock:
                self._calls -= 1

    def find(self, token: str) -> GatewayEpisode:
        """ApiError: 401, or 410."""
        with self._lock:
            episode, has_ended = self._open.get(_hash(token)), _hash(token) in self._ended
        if has_ended:
            raise ApiError(410, "the episode has ended")
        if episode is None:
            raise ApiError(401, "the token is not that of an episode")
        return episode


def _hash(token: str) -> bytes:
    """Looking up a token itself would tell, by the time it takes, how much of a guess is right."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()

"""Which episode a client belongs to, by its token."""

from __future__ import annotations

import hashlib
import secrets
import threading

from ale_jax.gateway.episode import GatewayEpisode
from ale_jax.gateway.requests import ApiError
from ale_jax.gateway.token_tree import Branch, BranchChoice

TOKEN_BYTES = 24
KEPT_ENDED = 4096  # tokens of ended episodes that are still known


class Episodes:
    """Thread-safe. A token is unknown (401), of an episode that is open, or of one that has ended
    (410)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[bytes, GatewayEpisode] = {}  # by their tokens' hashes
        self._ended: dict[bytes, None] = {}
        self._retry_after: int | None = None

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

    def pause(self, retry_after: int) -> None:
        """Refuses new calls until `resume`. retry_after: seconds after which to ask again."""
        self._retry_after = retry_after

    def resume(self) -> None:
        self._retry_after = None

    def admit(self, token: str) -> GatewayEpisode:
        """The episode of a call.

        Raises:
          ApiError: 401, 410, or 429 while calls are paused.
        """
        with self._lock:
            episode, has_ended = self._open.get(_hash(token)), _hash(token) in self._ended
        if has_ended:
            raise ApiError(410, "the episode has ended")
        if episode is None:
            raise ApiError(401, "the token is not that of an episode")
        if self._retry_after is not None:
            raise ApiError(429, "calls are paused", retry_after=self._retry_after)
        return episode


def _hash(token: str) -> bytes:
    """Looking up a token itself would tell, by the time it takes, how much of a guess is right."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()

"""Which policy a client asks for, by the name that it gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from ale_jax.gateway.episode import GatewayEpisode
from ale_jax.gateway.episodes import episode_of
from ale_jax.gateway.requests import ApiError


class Models:
    """The policy of the client's own episode, and further ones that are chosen by their names. One
    that is alone answers whatever clients call it."""

    def __init__(self, own: str, others: Mapping[str, GatewayEpisode]):
        self.own, self._others = own, dict(others)

    def listed(self) -> list[dict[str, Any]]:
        """Returns them as OpenAI's API lists models."""
        alike = {"object": "model", "created": 0, "owned_by": "ale-jax"}
        others = [{"id": name, **alike, "parent": self.own} for name in self._others]
        return [{"id": self.own, **alike}, *others]

    def chosen(self, name: str, request: Request) -> tuple[GatewayEpisode, str]:
        """Returns the episode of the policy of this name, and its name; the own one if the client
        names none. ApiError (404) if there is no such policy."""
        if not self._others or name in ("", self.own):
            return episode_of(request), self.own
        if name not in self._others:
            known = ", ".join([self.own, *self._others])
            text = f"there is no model {name!r:.80}: there are {known}"
            raise ApiError(404, text, "model", code="model_not_found")
        return self._others[name], name

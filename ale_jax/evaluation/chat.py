"""A policy behind an endpoint, as the agent loop calls it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx

from ale_jax.agent.api import PolicyError, Reply
from ale_jax.config.engine import Sampling
from ale_jax.worlds.api import Message
from ale_jax.worlds.endpoint import ContextFull, Endpoint, EndpointError


class ChatPolicy:
    """One conversation. tokens: that the policy wrote, as the endpoint counts them."""

    def __init__(self, client: httpx.Client, endpoint: Endpoint, sampling: Sampling, limit: int):
        """client: may be shared. limit: tokens of a reply."""
        self.tokens = 0
        self._client, self._endpoint = client, endpoint
        self._told: list[dict[str, str]] = []
        self._fields: dict[str, Any] = {
            "max_tokens": limit,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        # Not all endpoints know these, so they are only sent if they mean something.
        self._fields |= {"top_k": sampling.top_k} if sampling.top_k else {}
        self._fields |= {"min_p": sampling.min_p} if sampling.min_p else {}

    def reply(self, new_messages: Sequence[Message]) -> Reply:
        """Returns the endpoint's answer. PolicyError if it has none, or does not count tokens."""
        self._told += [{"role": _role(each), "content": each.content} for each in new_messages]
        try:
            said = self._endpoint.complete(self._client, self._told, **self._fields)
        except ContextFull:
            return Reply("", "context_full")
        except EndpointError as error:
            raise PolicyError(str(error)) from error
        if said.tokens is None:
            raise PolicyError(f"{self._endpoint.url} does not tell usage.completion_tokens")
        self.tokens += said.tokens
        self._told.append({"role": "assistant", "content": said.text})
        return Reply(said.text, "length" if said.is_cut else "stop")


def _role(message: Message) -> str:
    # A tool's message must answer a call of the API's, and the loop reads calls from the text.
    return "user" if message.role == "tool" else message.role

"""A policy behind an endpoint, as the agent loop calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx

from ale_jax.agent.api import PolicyError, Reply
from ale_jax.config.engine import Sampling
from ale_jax.worlds.api import Limits, Message
from ale_jax.worlds.endpoint import ContextFull, Endpoint, EndpointError
from ale_jax.worlds.tools import Offer


class ChatPolicy:
    """One conversation. tokens: that the policy wrote, as the endpoint counts them. prompt_tokens:
    that it was sent, over all calls; None if the endpoint does not count them."""

    def __init__(
        self,
        client: httpx.Client,
        endpoint: Endpoint,
        sampling: Sampling,
        limits: Limits,
        offer: Callable[[], Offer] = Offer,
    ):
        """client: may be shared. offer: the tools of the task; what it raises, the first reply
        raises."""
        self.tokens = self._context = 0
        self.prompt_tokens: int | None = 0
        self._client, self._endpoint = client, endpoint
        self._limits, self._offer = limits, offer
        self._told: list[Mapping[str, Any]] = []
        self._open_calls: list[str] = []  # ids of those that have no result yet
        self._fields: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        # Not all endpoints know these, so they are only sent if they mean something.
        self._fields |= {"top_k": sampling.top_k} if sampling.top_k else {}
        self._fields |= {"min_p": sampling.min_p} if sampling.min_p else {}

    def reply(self, new_messages: Sequence[Message]) -> Reply:
        """Returns the endpoint's answer. PolicyError if it has none, or does not count tokens."""
        if not self._told:
            self._fields |= self._offer().fields()
        self._told += map(self._as_openai, new_messages)
        most, longest = self._limits.reply_tokens, self._limits.context
        # What the new messages add is only known once they are answered.
        most = min(most, longest - self._context) if longest else most
        if most <= 0:
            return Reply("", "context_full")
        try:
            fields = {"max_tokens": most, **self._fields}
            said = self._endpoint.complete(self._client, self._told, **fields)
        except ContextFull:
            return Reply("", "context_full")
        except EndpointError as error:
            raise PolicyError(str(error)) from error
        if said.tokens is None:
            raise PolicyError(f"{self._endpoint.url} does not tell usage.completion_tokens")
        if longest and said.context is None:
            raise PolicyError(f"{self._endpoint.url} does not tell usage.total_tokens")
        self.tokens, self._context = self.tokens + said.tokens, said.context or 0
        if said.context is None or self.prompt_tokens is None:
            self.prompt_tokens = None
        else:
            self.prompt_tokens += said.context - said.tokens
        self._told.append(said.message)
        self._open_calls = [call["id"] for call in said.message.get("tool_calls", ())]
        return Reply(said.text, "length" if said.is_cut else "stop")

    def _as_openai(self, message: Message) -> dict[str, Any]:
        if message.role == "tool" and self._open_calls:
            told = {"role": "tool", "content": message.content}
            return told | {"tool_call_id": self._open_calls.pop(0)}
        # Other results of tools are of calls that the world reads from the text.
        role = "user" if message.role == "tool" else message.role
        return {"role": role, "content": message.content}

"""A policy behind any endpoint with OpenAI's chat completions, as the agent loop calls it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import httpx

from ale_jax.agent.api import PolicyError, Reply
from ale_jax.config.engine import Sampling
from ale_jax.worlds.api import Message

TIMEOUT = httpx.Timeout(600.0, connect=10.0)
RETRIES = 4
BUSY = (408, 409, 429, 500, 502, 503, 504)
FULL = ("context_length_exceeded", "context length", "prompt is too long", "maximum context")


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """url: of the API, which ends in /v1 in most cases. model: its name there. key: sent as the
    bearer; "" for none."""

    url: str
    model: str
    key: str = ""

    @classmethod
    def read(cls, given: str, key: str) -> Endpoint:
        """Reads URL#MODEL. ValueError if it is not that."""
        url, _, model = given.partition("#")
        if not model or not httpx.URL(url).host:
            raise ValueError(f"policy {given!r:.80} must be http://HOST/v1#MODEL")
        return cls(url.rstrip("/"), model, key)


class ChatPolicy:
    """One conversation. tokens: that the policy wrote, as the endpoint counts them."""

    def __init__(self, client: httpx.Client, endpoint: Endpoint, sampling: Sampling, limit: int):
        """client: may be shared. limit: tokens of a reply."""
        self.tokens = 0
        self._client, self._endpoint = client, endpoint
        self._told: list[dict[str, str]] = []
        self._fields: dict[str, Any] = {
            "model": endpoint.model,
            "max_tokens": limit,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        # Not all endpoints know these, so they are only sent if they mean something.
        self._fields |= {"top_k": sampling.top_k} if sampling.top_k else {}
        self._fields |= {"min_p": sampling.min_p} if sampling.min_p else {}

    def reply(self, new_messages: Sequence[Message]) -> Reply:
        """Returns the endpoint's answer. PolicyError if it has none."""
        self._told += [{"role": _role(each), "content": each.content} for each in new_messages]
        response = self._post({**self._fields, "messages": self._told})
        if response.status_code == 400 and any(words in response.text for words in FULL):
            return Reply("", "context_full")
        if response.status_code != 200:
            raise PolicyError(
                f"{self._endpoint.url} answers {response.status_code}: {response.text:.200}"
            )
        try:
            answer = response.json()
            (choice,) = answer["choices"]
            text = choice["message"]["content"] or ""
            self.tokens += int(answer["usage"]["completion_tokens"])
        except (KeyError, TypeError, ValueError) as broken:
            raise PolicyError(f"no chat completion: {response.text:.200}") from broken
        self._told.append({"role": "assistant", "content": text})
        return Reply(text, "length" if choice.get("finish_reason") == "length" else "stop")

    def _post(self, body: dict[str, Any]) -> httpx.Response:
        key, url = self._endpoint.key, f"{self._endpoint.url}/chat/completions"
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        for attempt in range(RETRIES + 1):
            try:
                response = self._client.post(url, json=body, headers=headers)
            except httpx.HTTPError as error:
                if attempt == RETRIES:
                    raise PolicyError(f"no answer of {url}: {error!r}") from error
            else:
                if response.status_code not in BUSY or attempt == RETRIES:
                    return response
            time.sleep(2.0**attempt / 4)
        raise AssertionError("the last attempt returns or raises")


def _role(message: Message) -> str:
    # A tool's message must answer a call of the API's, and the loop reads calls from the text.
    return "user" if message.role == "tool" else message.role

"""A model behind any endpoint with OpenAI's chat completions."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

TIMEOUT = httpx.Timeout(600.0, connect=10.0)
ATTEMPTS = 5
BUSY = (408, 409, 429, 500, 502, 503, 504)
# How servers say, in the body of a 400, that a conversation is too long.
FULL = ("context_length_exceeded", "context length", "prompt is too long", "maximum context")
SAID_CHARS = 200  # of an answer, in an error


class EndpointError(RuntimeError):
    """The endpoint does not answer, or not with a completion."""


class ContextFull(EndpointError):
    """The conversation is longer than what the model reads."""


@dataclasses.dataclass(frozen=True)
class Completion:
    """What the model wrote. is_cut: at the limit of tokens. tokens: as the endpoint counts them;
    None if it does not tell."""

    text: str
    is_cut: bool
    tokens: int | None


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """url: of the API, which ends in /v1 in most cases. model: its name there. key: sent as the
    bearer; "" for none."""

    url: str
    model: str
    key: str = ""

    @classmethod
    def read(cls, given: str, what: str, key: str = "") -> Endpoint:
        """Reads URL#MODEL. ValueError, about `what`, if it is not that."""
        url, _, model = given.partition("#")
        try:
            is_url = httpx.URL(url).scheme in ("http", "https") and bool(httpx.URL(url).host)
        except httpx.InvalidURL:
            is_url = False
        if not model or not is_url:
            raise ValueError(f"{what} {given!r:.80} must be http://HOST/v1#MODEL")
        return cls(url.rstrip("/"), model, key)

    def complete(
        self, client: httpx.Client, messages: Sequence[Mapping[str, str]], **fields: Any
    ) -> Completion:
        """Asks the model to go on after some messages. fields: of the request, such as temperature.
        A busy endpoint is asked again, ATTEMPTS times in all. EndpointError if it has no answer."""
        # Half a surrogate cannot be sent, and may stand in what a policy or a sandbox wrote.
        told = [
            {name: value.encode(errors="replace").decode() for name, value in each.items()}
            for each in messages
        ]
        response = self._posted(client, {"model": self.model, "messages": told, **fields})
        if response.status_code == 400 and any(words in response.text for words in FULL):
            raise ContextFull(f"{self.url}: {response.text[:SAID_CHARS]}")
        try:
            if response.status_code != 200:
                raise ValueError("an error")
            return _completion(response.json())
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as broken:
            said = f"{response.status_code}: {response.text[:SAID_CHARS]}"
            raise EndpointError(f"{self.url} answers {said}") from broken

    def _posted(self, client: httpx.Client, body: Mapping[str, Any]) -> httpx.Response:
        url = f"{self.url}/chat/completions"
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        for attempt in range(1, ATTEMPTS + 1):
            try:
                response = client.post(url, json=body, headers=headers, timeout=TIMEOUT)
            except httpx.HTTPError as error:
                if attempt == ATTEMPTS:
                    raise EndpointError(f"{url} does not answer: {error!r}") from error
            else:
                if response.status_code not in BUSY or attempt == ATTEMPTS:
                    return response
            time.sleep(2.0**attempt / 8)
        raise AssertionError("the last attempt returns or raises")


def _completion(answer: Any) -> Completion:
    (choice,) = answer["choices"]
    text, usage = choice["message"]["content"], answer.get("usage") or {}
    if not isinstance(text, str | None):
        raise ValueError(f"{text!r:.80} is no text")
    is_cut, tokens = choice.get("finish_reason") == "length", usage.get("completion_tokens")
    if text is None and not is_cut:
        raise ValueError("there is no text")
    return Completion(text or "", is_cut, None if tokens is None else int(tokens))

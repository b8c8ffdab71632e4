"""A model behind any endpoint with OpenAI's API."""

from __future__ import annotations

import dataclasses
import json
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import httpx

from ale_jax.worlds.replies import reply_text

T = TypeVar("T")

SECONDS, CONNECT_S = 600.0, 10.0
ATTEMPTS = 5
BUSY = (408, 409, 429, 500, 502, 503, 504)
# How servers say, in the body of a 400, that a conversation is too long.
FULL = ("context_length_exceeded", "context length", "prompt is too long", "maximum context")
MOST_TOKENS = 2**40  # of a reply or conversation; more is no count
SAID_CHARS = 200  # of an answer, in an error


class EndpointError(RuntimeError):
    """The endpoint does not answer, or not with a completion."""


class EndpointRefused(EndpointError):
    """The endpoint would answer the same request in the same way, as with a key that it refuses."""


class ContextFull(EndpointRefused):
    """The conversation is longer than what the model reads."""


@dataclasses.dataclass(frozen=True)
class Completion:
    """What the model wrote. text: with its calls of tools, as `worlds.replies` writes them. is_cut:
    at the limit of tokens. tokens, context: those of the reply, and of prompt and reply, as the
    endpoint counts them; None if it does not tell. message: as it has to be told again."""

    text: str
    is_cut: bool
    tokens: int | None
    context: int | None = None
    message: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """url: of the API, which ends in /v1 in most cases. model: its name there. key: sent as the
    bearer; "" for none. seconds: how long it may be silent, in all attempts for an answer together;
    None for SECONDS in each."""

    url: str
    model: str
    key: str = ""
    seconds: float | None = None

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
        self, client: httpx.Client, messages: Sequence[Mapping[str, Any]], **fields: Any
    ) -> Completion:
        """Asks the model to go on after some messages. fields: of the request, such as temperature.
        A busy endpoint is asked again, ATTEMPTS times in all. EndpointError if it has no answer,
        EndpointRefused if there will be none."""
        asked = {"messages": messages, **fields}
        response = self._posted(client, "chat/completions", asked)
        if response.status_code == 400 and any(words in response.text for words in FULL):
            raise ContextFull(f"{self.url}: {response.text[:SAID_CHARS]}")
        return self._read(response, _completion)

    def score(self, client: httpx.Client, ids: Sequence[int], top: int) -> Sequence[Any]:
        """Asks how probable each token of a prompt is, as vLLM answers `prompt_logprobs`: for each
        but the first an object, whose keys are ids, of the token itself and of the `top` most
        probable ones. What it holds is not checked. Errors as of `complete`."""
        # A completion has at least one token.
        asked = {"prompt": list(ids), "max_tokens": 1, "prompt_logprobs": top}
        response = self._posted(client, "completions", asked)

        def told(answer: Any) -> Sequence[Any]:
            (choice,) = answer["choices"]
            found = choice["prompt_logprobs"]
            if not isinstance(found, list) or len(found) != len(ids):
                raise ValueError("not one for each token")
            return found

        return self._read(response, told)

    def _read(self, response: httpx.Response, read: Callable[[Any], T]) -> T:
        try:
            if response.status_code != 200:
                raise ValueError("an error")
            return read(response.json())
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as broken:
            code = response.status_code
            error = EndpointRefused if 300 <= code < 500 and code not in BUSY else EndpointError
            said = f"{code}: {response.text[:SAID_CHARS]}"
            why = f" ({broken!r:.{SAID_CHARS}})" if code == 200 else ""
            raise error(f"{self.url} answers {said}{why}") from broken

    def _posted(self, client: httpx.Client, path: str, asked: Mapping[str, Any]) -> httpx.Response:
        url = f"{self.url}/{path}"
        body = {"model": self.model, **asked}
        # Half a surrogate cannot be sent, and may stand in what a policy or a sandbox wrote.
        content = json.dumps(body, ensure_ascii=False).encode(errors="replace")
        headers = {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {self.key}"} if self.key else {}
        end = math.inf if self.seconds is None else time.monotonic() + self.seconds
        for attempt in range(1, ATTEMPTS + 1):
            timeout = httpx.Timeout(
                min(max(end - time.monotonic(), 0.01), SECONDS), connect=CONNECT_S
            )
            pause = 2.0**attempt / 8
            try:
                response = client.post(url, content=content, headers=headers, timeout=timeout)
            except httpx.HTTPError as error:
                if attempt == ATTEMPTS or time.monotonic() + pause > end:
                    raise EndpointError(f"{url} does not answer: {error!r}") from error
            else:
                is_last = attempt == ATTEMPTS or time.monotonic() + pause > end
                if response.status_code not in BUSY or is_last:
                    return response
            time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")


def _completion(answer: Any) -> Completion:
    (choice,) = answer["choices"]
    said, usage = choice["message"], answer.get("usage") or {}
    text, calls = said["content"], list(map(_with_id, said.get("tool_calls") or ()))
    if not isinstance(text, str | None):
        raise ValueError(f"{text!r:.80} is no text")
    is_cut, tokens = choice.get("finish_reason") == "length", usage.get("completion_tokens")
    if text is None and not is_cut and not calls:
        raise ValueError("there is no text")
    written = [(each["function"]["name"], each["function"]["arguments"]) for each in calls]
    message: dict[str, Any] = {"role": "assistant", "content": text or ""}
    message |= {"tool_calls": calls} if calls else {}
    whole = reply_text(text or "", "", written)
    told = _count("completion_tokens", tokens, 0)
    total = _count("total_tokens", usage.get("total_tokens"), told or 0)
    return Completion(whole, is_cut, told, total, message)


def _with_id(call: Any) -> dict[str, Any]:
    """Some endpoints give calls no id, but their results need one."""
    return {**call, "id": call.get("id") or f"call_{secrets.token_hex(6)}"}


def _count(name: str, given: Any, least: int) -> int | None:
    """Returns a count of tokens as it is told; None if it is not. ValueError for one that would
    make figures of all episodes nonsense."""
    if given is None:
        return None
    if not isinstance(given, int) or isinstance(given, bool) or not least <= given <= MOST_TOKENS:
        raise ValueError(f"usage.{name} is {given!r:.80}, and no count from {least} on")
    return given

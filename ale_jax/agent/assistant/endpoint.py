"""An OpenAI-compatible endpoint of chat completions, read as a stream. What it sends is hostile."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import httpx

from ale_jax.agent.assistant.clipping import clip, encodable_json
from ale_jax.agent.assistant.messages import NO_PIECE, AssistantReply, Message, ReplyParts

MAX_REPLY_BYTES = 64 << 20  # with what the stream adds to each token
MAX_ERROR_BYTES = 4096
KEPT_ERROR = 500  # characters
# The endpoint has not begun to answer, so that to ask again does not sample twice.
ASK_AGAIN = (429, 502, 503, 504)
MAX_WAIT_S = 60.0

See = Callable[[str, str], Awaitable[None]]  # told what is written: kind, "text" or "thought"; text


class EndpointError(RuntimeError):
    """There is no reply. The message says why, and what to do."""


@dataclasses.dataclass(frozen=True)
class EndpointSettings:
    """Where the model is, and how it is asked. base_url: such as http://127.0.0.1:8000/v1.
    max_tokens: of a reply; None: the endpoint's own limit. temperature: None: the endpoint's own.
    attempts: how often a busy endpoint is asked."""

    base_url: str
    model: str
    key: str = dataclasses.field(default="", repr=False)
    max_tokens: int | None = None
    temperature: float | None = None
    attempts: int = 5
    seconds: float = 600.0

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise ValueError(
                f"base_url {self.base_url!r:.80} must begin with http:// or https://; set"
                " --base-url, OPENAI_BASE_URL or base_url in the config"
            )
        if not self.model:
            raise ValueError(
                "model '' must not be empty; set --model, OPENAI_MODEL or model in the config"
            )
        if self.attempts < 1:
            raise ValueError(f"attempts {self.attempts} must be at least 1")
        if self.seconds <= 0:
            raise ValueError(f"seconds {self.seconds} must be more than 0")


class Endpoint:
    """Use it in an `async with` block, or call `close`."""

    def __init__(self, settings: EndpointSettings):
        self.settings = settings
        headers = {"Authorization": f"Bearer {settings.key}"} if settings.key else {}
        timeout = httpx.Timeout(settings.seconds, connect=min(30.0, settings.seconds))
        self._http = httpx.AsyncClient(
            base_url=settings.base_url.rstrip("/") + "/",
            headers=headers,
            timeout=timeout,
            # Without TLS there is nothing to verify, and the certificates take long to load.
            verify=settings.base_url.startswith("https://"),
        )

    async def __aenter__(self) -> Endpoint:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        see: See,
        may_call: bool = True,
    ) -> AssistantReply:
        """Returns the next reply. may_call False: without a call of a tool. `see` is told of it
        while it is written.

        Raises:
          EndpointError: the endpoint refused, failed, or sent what is no reply.
        """
        body = self._body(messages, tools, may_call)
        for attempt in range(1, self.settings.attempts + 1):
            is_last = attempt == self.settings.attempts
            wait = 0.5 * 2**attempt
            try:
                async with self._http.stream("POST", "chat/completions", json=body) as response:
                    if response.status_code == 200:
                        return await _read(response, see)
                    if is_last or response.status_code not in ASK_AGAIN:
                        raise EndpointError(await self._refusal(response))
                    wait = _retry_after(response, wait)
            except httpx.ConnectError as error:
                if is_last:
                    raise EndpointError(self._unreachable(error)) from error
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise EndpointError(self._unreachable(error)) from error
            await asyncio.sleep(min(wait, MAX_WAIT_S))
        raise AssertionError("the last attempt returns or raises")

    def _body(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], may_call: bool
    ) -> dict[str, Any]:
        settings = self.settings
        body: dict[str, Any] = {
            "model": settings.model,
            "messages": encodable_json(list(messages)),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if tools:
            # Also where none may be called: the prompt begins as before, and is cached.
            body |= {"tools": list(tools), "tool_choice": "auto" if may_call else "none"}
        if settings.max_tokens is not None:
            body["max_tokens"] = settings.max_tokens
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        return body

    def _unreachable(self, error: Exception) -> str:
        told = str(error) or type(error).__name__
        return f"no answer from {self.settings.base_url}: {told}; check --base-url, and try again"

    async def _refusal(self, response: httpx.Response) -> str:
        content = b""
        async for chunk in response.aiter_bytes(MAX_ERROR_BYTES):
            content += chunk
            if len(content) >= MAX_ERROR_BYTES:
                break
        told = clip(_message_of(content.decode(errors="replace")), KEPT_ERROR)
        remedy = "; set OPENAI_API_KEY" if response.status_code in (401, 403) else ""
        return f"{self.settings.base_url} refused ({response.status_code}): {told}{remedy}"


async def _read(response: httpx.Response, see: See) -> AssistantReply:
    parts = ReplyParts()
    async for data in _server_events(response):
        if data == "[DONE]":
            return parts.reply()
        try:
            chunk = json.loads(data)
            if "error" in chunk:
                raise EndpointError(
                    f"the reply was broken off: {clip(_message_of(data), KEPT_ERROR)}"
                )
            news = parts.add(chunk)
        except (*NO_PIECE, RecursionError) as error:
            raise EndpointError(
                f"the endpoint sent no valid reply ({error}): {data!r:.200}"
            ) from error
        for kind, text in news:
            await see(kind, text)
    if parts.stop:
        return parts.reply()
    raise EndpointError("the reply was broken off; try again")


async def _server_events(response: httpx.Response) -> AsyncIterator[str]:
    """The data of the events. Not `aiter_lines`, which holds lines of any length."""
    size, rest = 0, b""
    async for chunk in response.aiter_bytes():
        size += len(chunk)
        if size > MAX_REPLY_BYTES:
            raise EndpointError(f"the reply is longer than {MAX_REPLY_BYTES} bytes")
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line.removeprefix(b"data:").decode(errors="replace").strip()


def _message_of(text: str) -> str:
    """An error's message, as OpenAI's API writes it; all of the text if it is of another form."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return text


def _retry_after(response: httpx.Response, default: float) -> float:
    try:
        return max(0.0, float(response.headers.get("Retry-After", default)))
    except ValueError:  # it may be a date
        return default

"""What is exchanged with the endpoint: messages, and replies, put together from a stream."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping
from typing import Any

from ale_jax.agent.assistant.clipping import encodable

MAX_CALLS, MAX_NAME, MAX_ID = 64, 256, 256
NO_PIECE = (ValueError, TypeError, KeyError, AttributeError, OverflowError)
MAX_CHARS = 1 << 18  # of a reply, so that it fits in a line of the log

Message = dict[str, Any]  # as in OpenAI's chat completions


@dataclasses.dataclass(frozen=True)
class AssistantCall:
    """A call of a tool. arguments: as the model wrote them. They are sent back unchanged, for an
    endpoint that trains the model has to recognise its own reply."""

    id: str
    name: str
    arguments: str

    def to_message(self) -> Message:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclasses.dataclass(frozen=True)
class Usage:
    """Tokens of one call. cached: those of the prompt that were not computed again."""

    prompt: int
    completion: int
    cached: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt + other.prompt,
            self.completion + other.completion,
            self.cached + other.cached,
        )


@dataclasses.dataclass(frozen=True)
class AssistantReply:
    """A whole reply of the model. stop: the endpoint's finish_reason. usage: None if the endpoint
    did not report it."""

    content: str
    reasoning: str
    calls: tuple[AssistantCall, ...]
    stop: str
    usage: Usage | None


def assistant_message(content: str, reasoning: str, calls: tuple[AssistantCall, ...]) -> Message:
    """Returns a reply as a message, without the fields that it does not have."""
    message: Message = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [call.to_message() for call in calls]
    return message


def num_chars(message: Mapping[str, Any]) -> int:
    """Counts the characters of all that the model reads in a message."""
    calls = message.get("tool_calls", ())
    return (
        len(message.get("content") or "")
        + len(message.get("reasoning_content") or "")
        + sum(len(c["function"]["name"]) + len(c["function"]["arguments"]) for c in calls)
    )


@dataclasses.dataclass
class _CallParts:
    id: str = ""
    name: str = ""
    arguments: str = ""


class ReplyParts:
    """A reply of chat completions, put together from the pieces of a stream."""

    def __init__(self) -> None:
        self.stop = ""
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _CallParts] = {}
        self._usage: Usage | None = None
        self._size = 0

    def add(self, chunk: dict[str, Any]) -> list[tuple[str, str]]:
        """Adds a piece; returns what is new to read in it, each with its kind.

        Raises one of NO_PIECE for what is no piece of a reply.
        """
        if used := chunk.get("usage"):
            details = used.get("prompt_tokens_details") or {}
            self._usage = Usage(
                prompt=int(used["prompt_tokens"]),
                completion=int(used["completion_tokens"]),
                cached=int(details.get("cached_tokens") or 0),
            )
        news: list[tuple[str, str]] = []
        for choice in chunk.get("choices") or ():
            self.stop = choice.get("finish_reason") or self.stop
            delta = choice.get("delta") or {}
            reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
            for kind, text in (("thought", reasoning), ("text", delta.get("content") or "")):
                if text:
                    text = self._counted(text)
                    (self._content if kind == "text" else self._reasoning).append(text)
                    news.append((kind, text))
            for number, call in enumerate(delta.get("tool_calls") or ()):
                self._add_call(call, number)
        return news

    def reply(self) -> AssistantReply:
        return AssistantReply(
            content="".join(self._content),
            reasoning="".join(self._reasoning),
            calls=tuple(self._call(parts) for _, parts in sorted(self._calls.items())),
            stop=self.stop,
            usage=self._usage,
        )

    def _add_call(self, call: dict[str, Any], number: int) -> None:
        parts = self._calls.setdefault(int(call.get("index", number)), _CallParts())
        if len(self._calls) > MAX_CALLS:
            raise ValueError(f"more than {MAX_CALLS} calls in a reply")
        function = call.get("function") or {}
        parts.id = encodable(call.get("id") or parts.id)
        parts.name += encodable(function.get("name") or "")
        parts.arguments += self._counted(function.get("arguments") or "")
        if len(parts.name) > MAX_NAME or len(parts.id) > MAX_ID:
            raise ValueError("a call's name or id is too long")

    def _counted(self, text: str) -> str:
        self._size += len(text)
        if self._size > MAX_CHARS:
            raise ValueError(f"a reply of more than {MAX_CHARS} characters")
        return encodable(text)

    def _call(self, parts: _CallParts) -> AssistantCall:
        # Some endpoints give calls no id, but their results need one.
        return AssistantCall(
            parts.id or f"call_{secrets.token_hex(6)}", parts.name, parts.arguments
        )

"""What is exchanged with the endpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

Message = dict[str, Any]  # as in OpenAI's chat completions


@dataclasses.dataclass(frozen=True)
class AssistantCall:
    """arguments: as the model wrote them. They are sent back unchanged, for an endpoint that trains
    the model has to recognise its own reply."""

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
    """stop: the endpoint's finish_reason. usage: None if the endpoint did not report it."""

    content: str
    reasoning: str
    calls: tuple[AssistantCall, ...]
    stop: str
    usage: Usage | None


def assistant_message(content: str, reasoning: str, calls: tuple[AssistantCall, ...]) -> Message:
    message: Message = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [call.to_message() for call in calls]
    return message


def num_chars(message: Mapping[str, Any]) -> int:
    """Of all that the model reads in a message."""
    calls = message.get("tool_calls", ())
    return (
        len(message.get("content") or "")
        + len(message.get("reasoning_content") or "")
        + sum(len(c["function"]["name"]) + len(c["function"]["arguments"]) for c in calls)
    )

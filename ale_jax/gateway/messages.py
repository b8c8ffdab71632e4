"""Messages of a conversation, by whichever API they came, and when two are the same."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from ale_jax.gateway.json_values import value_or_text

Role = Literal["system", "user", "assistant", "tool"]
# That a message or a call counts beside its text: a template writes at least a token around it.
AROUND = 16
# Lines of a system prompt that are new in every call, and say nothing to the policy: they would
# make each call of a conversation the beginning of another one. Claude Code accounts for its calls
# in such a line.
VOLATILE_HEADER = re.compile(r"^x-anthropic-billing-header:.*\n?", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class ToolCall:
    """A call of a tool. arguments: JSON as it was written, which may be malformed if the policy
    wrote it. id: by which a result names its call; clients may change it."""

    name: str
    arguments: str
    id: str = ""


@dataclasses.dataclass(frozen=True)
class ChatMessage:
    """A message of a conversation. reasoning: what the policy thought before its answer. answers:
    the id of the call that a tool message has the result of."""

    role: Role
    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    answers: str = ""

    @property
    def num_chars(self) -> int:
        chars = AROUND + len(self.content) + len(self.reasoning) + len(self.answers)
        for call in self.tool_calls:
            chars += AROUND + len(call.name) + len(call.arguments) + len(call.id)
        return chars


def without_volatile_headers(messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """Returns the messages without what VOLATILE_HEADER finds in system prompts, and without those
    that had nothing else."""
    kept = []
    for message in messages:
        if message.role == "system" and VOLATILE_HEADER.search(message.content):
            content = VOLATILE_HEADER.sub("", message.content)
            if not content.strip():
                continue
            message = dataclasses.replace(message, content=content)
        kept.append(message)
    return tuple(kept)


def message_key(message: ChatMessage) -> bytes:
    """Returns a key that is equal for messages that mean the same, although a client has stored
    them and sent them back: it may trim the content, write a call's JSON in another way or number
    calls anew, and many leave out the reasoning."""
    calls = "[]"  # of most messages; writing it takes as long as hashing a thousand letters
    if message.tool_calls:
        told = [[call.name, value_or_text(call.arguments)] for call in message.tool_calls]
        calls = _json_text(told)
    # The JSON is one line, so no other message can be written in this way.
    return _digest(f"{message.role} {calls}\n{message.content.strip()}")


def path_keys(start: bytes, messages: Sequence[ChatMessage]) -> list[bytes]:
    """Returns for each message a key of all messages up to it. start: of what they come after."""
    keys = []
    for message in messages:
        start = hashlib.sha256(start + message_key(message)).digest()
        keys.append(start)
    return keys


def tools_key(tools: Sequence[dict[str, Any]], variables: Mapping[str, Any] | None = None) -> bytes:
    """Returns a key of the tools that a conversation offers, and of the variables of its
    template."""
    return _digest(_json_text([list(tools), dict(variables)] if variables else list(tools)))


def text_key(prompt_ids: np.ndarray) -> bytes:
    """Returns a key of a text that is no conversation."""
    return hashlib.sha256(b"text" + prompt_ids.tobytes()).digest()


def _json_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()

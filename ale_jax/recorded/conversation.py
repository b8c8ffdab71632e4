"""A recorded conversation, from whichever format it was read."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from ale_jax.data.selection import Chunk, error_mask, relevance_mask
from ale_jax.gateway.messages import ChatMessage, ToolCall
from ale_jax.worlds.replies import Call, Reply

ASSISTANT: Literal["assistant"] = "assistant"
TOOL: Literal["tool"] = "tool"
ItemKey = tuple[str, str, str | int]  # world, family and item of a run's episode


@dataclasses.dataclass(frozen=True)
class Conversation:
    """messages: with tools' calls and results. failed, learned: of each reply of the assistant,
    whether its call met an error, and whether the record lets it be learned. tools: as chat
    templates take them. as_written: the replies are texts that a policy wrote, calls and thoughts
    included, and not messages for a template to write. reward: None if the record has none. item:
    of an episode, what it played.
    """

    messages: tuple[ChatMessage, ...]
    failed: tuple[bool, ...]
    learned: tuple[bool, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    as_written: bool = False
    reward: float | None = None
    item: ItemKey | None = None

    def __post_init__(self) -> None:
        assert len(self.failed) == len(self.learned) == self.num_replies

    @property
    def num_replies(self) -> int:
        """The number of messages of the assistant."""
        return sum(message.role == ASSISTANT for message in self.messages)

    @property
    def beginning(self) -> bytes:
        """A digest of what comes before the first reply. Attempts at one task share it."""
        asked = itertools.takewhile(lambda message: message.role != ASSISTANT, self.messages)
        told = [[message.role, message.content] for message in asked]
        return hashlib.sha256(json.dumps(told).encode("utf-8", "surrogatepass")).digest()

    def mask(self, errors: bool, repeats: bool) -> np.ndarray:
        """Returns m [K], bool: which of the K replies are learned: those that the record lets be,
        times m_err if `errors` and m_task if `repeats`."""
        mask, chunks = np.array(self.learned, bool), self._chunks()
        if errors:
            mask &= error_mask(chunks)
        if repeats:
            mask &= relevance_mask(chunks)
        return mask

    def _chunks(self) -> list[Chunk]:
        """Of each reply. Its observation is all that follows up to the next one, since an agent
        lays its messages out as it likes."""
        actions: list[str] = []
        seen: list[list[str]] = []
        for message in self.messages:
            if message.role == ASSISTANT:
                actions.append(_action(message))
                seen.append([])
            elif seen:  # before the first reply, it is the task
                seen[-1].append(message.content)
        observations = map("\n".join, seen)
        fields = zip(actions, observations, self.failed, strict=True)
        return [Chunk(*each) for each in fields]


def with_calls(messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """Returns the messages of a world with tools, whose replies are texts as `worlds.replies` has
    them, as an API tells them. Results are those of the last reply's calls, in order."""
    told: list[ChatMessage] = []
    waiting: list[str] = []
    numbers = itertools.count()
    for message in messages:
        if message.role == ASSISTANT:
            reply = Reply(message.content)
            calls = tuple(_told(each, f"call_{next(numbers)}") for each in reply.calls)
            told.append(ChatMessage(ASSISTANT, reply.content, reply.thoughts, calls))
            waiting = [call.id for call in calls]
        elif message.role == TOOL and waiting:
            told.append(dataclasses.replace(message, answers=waiting.pop(0)))
        else:
            told.append(message)
    return tuple(told)


def _told(call: Call, id: str) -> ToolCall:
    return ToolCall(call.name, json.dumps(call.arguments, ensure_ascii=False), id)


def failures(messages: Sequence[ChatMessage], errors: Sequence[bool]) -> tuple[bool, ...]:
    """Returns of each reply whether it or a result that follows it is an error. errors: of each
    message."""
    failed: list[bool] = []
    for message, is_error in zip(messages, errors, strict=True):
        if message.role == ASSISTANT:
            failed.append(is_error)
        elif failed:
            failed[-1] |= is_error
    return tuple(failed)


def _action(message: ChatMessage) -> str:
    calls = (f"{call.name} {call.arguments}" for call in message.tool_calls)
    return "\n".join(filter(None, (message.content, *calls)))

"""Conversations in the formats of others, of which the readers make the same ones again.

What these formats have no place for stands under names of ours: `episode` says what was played,
and `is_error` of a reply that its call met an error.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from ale_jax.agent.assistant.atif import (
    AtifAgent,
    AtifToolCall,
    Observation,
    ObservationResult,
    Step,
    Trajectory,
)
from ale_jax.gateway.json_values import value_or_text
from ale_jax.gateway.messages import ChatMessage, ToolCall
from ale_jax.recorded.conversation import ASSISTANT, TOOL, Conversation
from ale_jax.recorded.messages import AS_WRITTEN, CALL_ID, EPISODE, ITEM


def as_messages(conversation: Conversation) -> dict[str, Any]:
    """Returns a conversation as OpenAI's chat messages, with the tools and the reward."""
    messages = [_message(message) | flags for message, flags in _flagged(conversation)]
    tools = {"tools": list(map(dict, conversation.tools))} if conversation.tools else {}
    return {"messages": messages} | tools | _about(conversation)


def as_atif(conversation: Conversation, name: str) -> dict[str, Any]:
    """Returns a conversation as a trajectory of ATIF. name: of the trajectory.

    ValueError for a result of a tool that does not follow a reply, which the format cannot say.
    """
    steps: list[Step] = []
    for message, flags in _flagged(conversation):
        if message.role != TOOL:
            steps.append(_step(len(steps) + 1, message, flags))
        elif steps and steps[-1].source == "agent":
            steps[-1] = _with_result(steps[-1], message)
        else:
            raise ValueError(f"{name}: a tool's result that does not follow a reply")
    tools = tuple(map(dict, conversation.tools))
    return Trajectory(
        session_id=name,
        trajectory_id=name,
        agent=AtifAgent("ale-jax", version("ale-jax"), None, tools or None),
        steps=tuple(steps),
        final_metrics=None,
        extra=_about(conversation) or None,
    ).to_json()


def _flagged(conversation: Conversation) -> Iterator[tuple[ChatMessage, dict[str, Any]]]:
    """Yields the messages, each with what has to be said of a reply."""
    replies = iter(zip(conversation.failed, conversation.learned, strict=True))
    for message in conversation.messages:
        flags: dict[str, Any] = {}
        if message.role == ASSISTANT:
            has_failed, is_learned = next(replies)
            flags |= {"is_error": True} if has_failed else {}
            flags |= {} if is_learned else {"weight": 0}
        yield message, flags


def _about(conversation: Conversation) -> dict[str, Any]:
    episode: dict[str, Any] = {AS_WRITTEN: True} if conversation.as_written else {}
    if conversation.item:
        episode |= dict(zip(ITEM, conversation.item, strict=True))
    found = {"reward": conversation.reward, EPISODE: episode or None}
    return {name: value for name, value in found.items() if value is not None}


def _message(message: ChatMessage) -> dict[str, Any]:
    told: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        told["reasoning_content"] = message.reasoning
    if message.tool_calls:
        told["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    return told | ({"tool_call_id": message.answers} if message.answers else {})


def _step(number: int, message: ChatMessage, flags: dict[str, Any]) -> Step:
    source = "agent" if message.role == ASSISTANT else message.role
    return Step(
        step_id=number,
        timestamp=None,
        source=source,  # type: ignore[arg-type]
        message=message.content,
        reasoning_content=message.reasoning or None,
        tool_calls=tuple(map(_call, message.tool_calls)) or None,
        llm_call_count=1 if source == "agent" else None,
        extra=flags or None,
    )


def _call(call: ToolCall) -> AtifToolCall:
    """The format has arguments as an object. Where that does not say how they were written, or they
    are none, `extra` does."""
    value = value_or_text(call.arguments)
    arguments = value if isinstance(value, dict) else {}
    same = json.dumps(arguments, ensure_ascii=False) == call.arguments
    extra = None if same else {"arguments": call.arguments}
    return AtifToolCall(call.id, call.name, arguments, extra)


def _with_result(step: Step, message: ChatMessage) -> Step:
    is_named = message.answers in [call.tool_call_id for call in step.tool_calls or ()]
    extra: dict[str, Any] = {} if is_named else {"role": TOOL}
    if not is_named and message.answers != CALL_ID:
        extra["tool_call_id"] = message.answers
    result = ObservationResult(
        source_call_id=message.answers if is_named else None,
        content=message.content,
        extra=extra or None,
    )
    before = step.observation.results if step.observation else ()
    return dataclasses.replace(step, observation=Observation((*before, result)))

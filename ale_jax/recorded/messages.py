"""Conversations as OpenAI's API of chat completions has them, which most data sets follow, and as
ShareGPT wrote them first.

A message of a tool may have `is_error` (Anthropic's) or `status` "error" (langchain's), which says
that the call failed. An assistant's may have `weight` 0 (OpenAI's fine-tuning): it is context only.
What `recorded.export` adds is read, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ale_jax.gateway.api.openai_chat import ChatBody, chat_request
from ale_jax.gateway.messages import without_volatile_headers
from ale_jax.gateway.requests import ApiError
from ale_jax.recorded.conversation import ASSISTANT, TOOL, Conversation, ItemKey, failures

# How our own loop calls results, which have no ids (rollout/policy_client.py).
CALL_ID = "000000000"
# Of what was exported: the item that was played, and whether replies are the policy's own texts.
EPISODE, ITEM, AS_WRITTEN = "episode", ("world", "family", "item"), "as_written"
ROLES = {
    **{"human": "user", "user": "user", "system": "system"},
    **{"gpt": ASSISTANT, "assistant": ASSISTANT, "function_call": ASSISTANT},
    **{"tool": TOOL, "observation": TOOL, "function_response": TOOL},
}
RESPONSE, RESPONSE_END = "<tool_response>", "</tool_response>"


def of_messages(record: Mapping[str, Any]) -> Conversation:
    """Reads `messages`, and, if they are there, `tools`, `reward` and `episode`.

    ValueError, which begins with the field, for what is missing or wrong.
    """
    told = _list(record, "messages")
    are_named = any(map(_names_calls, told))
    messages = [_plain(message, are_named) for message in told]
    tools = _parsed(record.get("tools") or [], "tools")
    try:
        request = chat_request(ChatBody.model_validate({"messages": messages, "tools": tools}))
    except ValidationError as error:
        first, *_ = error.errors()
        field = ".".join(map(str, first["loc"]))
        raise ValueError(f"{field}: {first['msg']} ({first['input']!r:.80})") from None
    except ApiError as error:
        raise ValueError(f"{error.field}: {error.message}") from None
    errors = [_is_error(message, f"messages.{n}") for n, message in enumerate(told)]
    weights = [
        _weight(message, f"messages.{n}")
        for n, message in enumerate(told)
        if message["role"] == ASSISTANT
    ]
    return Conversation(
        messages=without_volatile_headers(request.messages),
        failed=failures(request.messages, errors),
        learned=tuple(weights),
        tools=request.tools,
        as_written=_episode(record).get(AS_WRITTEN) is True,
        reward=reward_of(record),
        item=_item(_episode(record)),
    )


def of_sharegpt(record: Mapping[str, Any]) -> Conversation:
    """Reads `conversations` of {"from", "value"}, and, if they are there, `system`, `tools` and
    `reward`. A `function_call` is a call as JSON. Around the result of a tool, the tags are left
    out that templates write.

    ValueError as from `of_messages`.
    """
    turns = _list(record, "conversations")
    messages = [_of_turn(turn, f"conversations.{n}") for n, turn in enumerate(turns)]
    if system := record.get("system"):
        messages.insert(0, {"role": "system", "content": system})
    return of_messages({**record, "messages": messages})


def reward_of(record: Mapping[str, Any]) -> float | None:
    """Returns the reward of a record; None if it has none. ValueError if it is no number."""
    reward = record.get("reward")
    if reward is not None and (isinstance(reward, bool) or not isinstance(reward, int | float)):
        raise ValueError(f"reward: {reward!r:.80} is no number")
    return reward


def _episode(record: Mapping[str, Any]) -> Mapping[str, Any]:
    episode = record.get(EPISODE) or {}
    if not isinstance(episode, dict):
        raise ValueError(f"{EPISODE}: {episode!r:.80} is no object")
    return episode


def _item(episode: Mapping[str, Any]) -> ItemKey | None:
    match [episode.get(name) for name in ITEM]:
        case [None, None, None]:
            return None
        case [str(world), str(family), str() | int() as item]:
            return world, family, item
    raise ValueError(f"{EPISODE}: {dict(episode)!r:.80} does not say {', '.join(ITEM)}")


def _of_turn(turn: Any, field: str) -> dict[str, Any]:
    if not isinstance(turn, dict):
        raise ValueError(f"{field}: {turn!r:.80} is no object")
    speaker, value = turn.get("from"), turn.get("value")
    if speaker not in ROLES:
        raise ValueError(f"{field}.from: {speaker!r:.80} is unknown, expected {', '.join(ROLES)}")
    if not isinstance(value, str):
        raise ValueError(f"{field}.value: {value!r:.80} is no text")
    message: dict[str, Any] = {**turn, "role": ROLES[speaker], "content": value}
    if speaker == "function_call":
        calls = _parsed(value, f"{field}.value")
        calls = calls if isinstance(calls, list) else [calls]
        message |= {"content": "", "tool_calls": [{"function": call} for call in calls]}
    elif ROLES[speaker] == TOOL and value.strip().startswith(RESPONSE):
        within = value.strip().removeprefix(RESPONSE).removesuffix(RESPONSE_END)
        message["content"] = within.strip("\n")
    return message


def _list(record: Mapping[str, Any], field: str) -> list[Any]:
    value = record.get(field)
    if not isinstance(value, list) or not value:
        raise ValueError(f"{field}: {value!r:.80} is no list of messages")
    return value


def _plain(message: Any, are_named: bool) -> Any:
    """A message as the API wants it: arguments as text, and a result's id. are_named: whether calls
    have ids, by which their results are then to be found."""
    if not isinstance(message, dict):
        return message
    shown = {name: value for name, value in message.items() if value is not None}
    if isinstance(calls := shown.get("tool_calls"), list):
        shown["tool_calls"] = list(map(_plain_call, calls))
    if shown.get("role") == TOOL and not shown.get("tool_call_id") and not are_named:
        shown["tool_call_id"] = CALL_ID
    return shown


def _plain_call(call: Any) -> Any:
    if not isinstance(call, dict) or not isinstance(function := call.get("function"), dict):
        return call
    arguments = function.get("arguments")
    if isinstance(arguments, dict):  # as templates take it, and not the API
        function = {**function, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {**call, "function": function}


def _names_calls(message: Any) -> bool:
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    listed = calls if isinstance(calls, list) else []
    return any(isinstance(call, dict) and call.get("id") for call in listed)


def _parsed(value: Any, field: str) -> Any:
    """Tables have lists of objects as JSON, since each may have other fields."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{field}: no JSON ({error})") from None


def _is_error(message: Mapping[str, Any], field: str) -> bool:
    is_error = message.get("is_error") or False
    if not isinstance(is_error, bool):
        raise ValueError(f"{field}.is_error: {is_error!r:.80} is neither true nor false")
    return is_error or message.get("status") == "error"


def _weight(message: Mapping[str, Any], field: str) -> bool:
    weight = message.get("weight")
    if weight not in (None, 0, 1):
        raise ValueError(f"{field}.weight: {weight!r:.80} is neither 0 nor 1")
    return weight != 0

"""Tools for chat templates that have no place for them: told in the system message, called by JSON
at the end of a reply, and answered by the user.

The calls are those of `gateway.formats`' plain JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

BETWEEN = "\n\n"
INTRODUCTION = "You may call these functions, which are described in JSON:"
JSON_CALL = '{"name": "...", "arguments": {...}}'
HOW_TO_CALL = f"To call one, end your reply with this object, and nothing behind it: {JSON_CALL}"
AS_TAUGHT = "To call one, write:\n"
RESULT = "Result of the call:\n"

Message = Mapping[str, Any]  # as transformers' chat templates take it


def with_tools_told(
    messages: Sequence[Message], tools: Sequence[Any], example: str = ""
) -> list[Message]:
    """Returns the messages of a conversation that begins, with the tools in the system message.
    example: a call as the template writes it; "" if it writes none.

    Example:
        >>> told = with_tools_told([{"role": "user", "content": "Hi"}], [{"name": "ls"}])
        >>> [message["role"] for message in told]
        ['system', 'user']
    """
    described = (json.dumps(tool, ensure_ascii=False) for tool in tools)
    how = f"{AS_TAUGHT}{example}" if example else HOW_TO_CALL
    text = BETWEEN.join([INTRODUCTION, "\n".join(described), how])
    has_system = bool(messages) and messages[0]["role"] == "system"
    said = [messages[0]["content"]] if has_system else []
    return [{"role": "system", "content": BETWEEN.join([*said, text])}, *messages[has_system:]]


def with_calls_told(messages: Sequence[Message], has_results: bool) -> list[Message]:
    """Returns the messages with calls in the text of replies, and with results as the user's.
    has_results: results may stay those of tools."""
    found: list[Message] = []
    for message in messages:
        if calls := message.get("tool_calls"):
            parts = filter(None, [message["content"], *map(_call, calls)])
            kept = {name: value for name, value in message.items() if name != "tool_calls"}
            found.append({**kept, "content": BETWEEN.join(parts)})
        elif message["role"] != "tool" or has_results:
            found.append(message)
        elif found and found[-1]["role"] == "user" and found[-1]["content"].startswith(RESULT):
            text = f"{found[-1]['content']}{BETWEEN}{RESULT}{message['content']}"
            found[-1] = {"role": "user", "content": text}
        else:
            found.append({"role": "user", "content": f"{RESULT}{message['content']}"})
    return found


def _call(call: Message) -> str:
    function = call["function"]
    return json.dumps(
        {"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False
    )

"""The two tools, and the text format of their calls, which is that of Qwen3's chat template.

What the policy writes is hostile input. It is parsed strictly, and every refusal is a short
sentence that goes back to the policy as an observation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ale_jax.strict_json import read_json
from ale_jax.worlds.replies import CLOSE, OPEN, Call, write_reply

# Short, because every token of it costs a small model.
SYSTEM_PROMPT = "Work in the shell with bash(command); when done, call finish(answer)."

# Tool -> names of its arguments; every argument is a string and none may be left out.
TOOLS: Mapping[str, tuple[str, ...]] = {"bash": ("command",), "finish": ("answer",)}

MAX_REPLY_CHARS = 16384


def _described(name: str, argument: str, does: str) -> Mapping[str, Any]:
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string"}},
        "required": [argument],
        "additionalProperties": False,
    }
    function = {"name": name, "description": does, "parameters": parameters}
    return {"type": "function", "function": function}


# The same, for models whose template tells of tools.
OFFERED: Sequence[Mapping[str, Any]] = (
    _described("bash", "command", "Run a command in the shell, and read what it prints."),
    _described("finish", "answer", "End the task, with the answer if it asks for one."),
)


class ToolCallError(Exception):
    """The reply holds no valid call; the message tells the policy why."""


@dataclasses.dataclass(frozen=True)
class ToolCall:
    """A call of one of TOOLS."""

    name: str
    arguments: Mapping[str, str]


def bash(command: str) -> ToolCall:
    """Makes a call that runs a command in the shell."""
    return ToolCall("bash", {"command": command})


def finish(answer: str = "") -> ToolCall:
    """`answer` is empty if a task asks for a state of the files and not for an answer."""
    return ToolCall("finish", {"answer": answer})


def render_tool_call(call: ToolCall) -> str:
    """Writes the call as Qwen3 does, JSON on a line of its own."""
    return write_reply("", [Call(call.name, call.arguments)])


def parse_tool_call(text: str) -> ToolCall:
    """Parses the single call that ends `text`. Text may precede it, but not follow it.

    Raises:
      ToolCallError: no call, more than one, bad JSON, unknown tool, or wrong arguments.
    """
    if len(text) > MAX_REPLY_CHARS:
        raise ToolCallError(f"reply longer than {MAX_REPLY_CHARS} characters")
    _, opened, rest = text.partition(OPEN)
    if not opened:
        raise ToolCallError(f"no {OPEN} in the reply")
    body, after = _decode(rest.lstrip())
    before, closed, trailing = after.lstrip().partition(CLOSE)
    if before or not closed:
        raise ToolCallError(f"expected {CLOSE} after the JSON")
    if OPEN in trailing:
        raise ToolCallError("more than one tool call")
    if trailing.strip():
        raise ToolCallError(f"text after {CLOSE}")
    return _checked(body)


def _decode(text: str) -> tuple[object, str]:
    """The JSON value at the start of `text`, and what follows it."""
    try:
        return read_json(text)
    except ValueError as error:
        raise ToolCallError(str(error)) from None


def _checked(body: object) -> ToolCall:
    if not isinstance(body, dict) or body.keys() != {"name", "arguments"}:
        raise ToolCallError('expected {"name": ..., "arguments": {...}}')
    name, arguments = body["name"], body["arguments"]
    if not isinstance(name, str) or name not in TOOLS:
        raise ToolCallError(f"unknown tool, expected one of: {', '.join(TOOLS)}")
    if not isinstance(arguments, dict) or arguments.keys() != set(TOOLS[name]):
        raise ToolCallError(f"{name} takes exactly: {', '.join(TOOLS[name])}")
    for key, value in arguments.items():
        if not isinstance(value, str):
            raise ToolCallError(f"{key} must be a string")
        if not _plain(value):
            raise ToolCallError(f"{key} holds a character that no shell can take")
    return ToolCall(name, arguments)


def _plain(text: str) -> bool:
    """Whether there is neither NUL nor a lone surrogate. JSON can encode both, a command line
    neither."""
    return not any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text)

"""Tools of clients as functions, which is all that a policy calls.

A custom tool takes a text instead of JSON: it becomes a function with one argument. Tools of a
namespace become functions with its name before their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ale_jax.gateway.api.fields import MAX_TOOLS, Fields
from ale_jax.gateway.json_values import value_or_text
from ale_jax.gateway.requests import ApiError

INPUT = "input"
BETWEEN = "__"  # a namespace and a name, as in names of tools of MCP
CUSTOM_PARAMETERS = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}


class ToolGrammar(Fields):
    syntax: str = ""
    definition: str = ""


class CustomFormat(ToolGrammar):
    """What the input of a custom tool must look like. In chat completions, a grammar is a field of
    its own."""

    type: str = "text"
    grammar: ToolGrammar | None = None


def function(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a tool as chat templates take it."""
    described = {"name": name, "description": description, "parameters": dict(parameters)}
    return {"type": "function", "function": described}


def custom_function(name: str, description: str, form: CustomFormat) -> dict[str, Any]:
    """Returns the function that stands for a custom tool. Its description has the grammar of the
    input, to which the policy is not held."""
    grammar = form.grammar or form
    if grammar.definition:
        told = f"The input follows this grammar ({grammar.syntax}):\n{grammar.definition}"
        description = f"{description}\n\n{told}".strip()
    return function(name, description, CUSTOM_PARAMETERS)


def custom_input(arguments: str) -> str:
    """Returns the input of a custom tool that a call has. If it has none, the tool gets what the
    policy wrote in its place, and says what is wrong with that.

    Example:
        >>> custom_input('{"input": "a b"}'), custom_input('{"text": "a b"}')
        ('a b', '{"text": "a b"}')
    """
    value = value_or_text(arguments)
    return value[INPUT] if _is_input(value) else arguments


def custom_arguments(text: str) -> str:
    """Returns the arguments of a call whose input is told, so that a call comes back as the policy
    wrote it.

    Example:
        >>> custom_arguments("a b"), custom_arguments('{"text": "a b"}')
        ('{"input": "a b"}', '{"text": "a b"}')
    """
    value = value_or_text(text)
    if isinstance(value, dict) and not _is_input(value):
        return text
    return json.dumps({INPUT: text}, ensure_ascii=False)


def full_name(namespace: str, name: str) -> str:
    """Returns the name of the function that stands for a tool of a namespace; "" for none.

    Example:
        >>> full_name("agents", "spawn"), full_name("mcp__git__", "log"), full_name("", "bash")
        ('agents__spawn', 'mcp__git__log', 'bash')
    """
    if not namespace or namespace.endswith(BETWEEN):
        return namespace + name
    return namespace + BETWEEN + name


def require_few(tools: Sequence[dict[str, Any]]) -> None:
    """ApiError (400) for more functions than there may be, those of namespaces included."""
    if len(tools) > MAX_TOOLS:
        raise ApiError(400, f"{len(tools)} functions: there may be {MAX_TOOLS}", "tools")


def require_offered(name: str, tools: Sequence[dict[str, Any]]) -> str:
    """Returns the name of a tool that is to be called. ApiError (400) if there is no such one."""
    if name not in [tool["function"]["name"] for tool in tools]:
        raise ApiError(400, f"tool_choice names {name!r:.80}, which is not in tools", "tool_choice")
    return name


def allowed_of(names: Sequence[str], tools: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Returns those of the names that are functions. ApiError (400) if none is."""
    offered = {tool["function"]["name"] for tool in tools}
    allowed = tuple(name for name in names if name in offered)
    if not allowed:
        raise ApiError(400, "none of the allowed tools is a function in tools", "tool_choice")
    return allowed


def _is_input(value: Any) -> bool:
    return isinstance(value, dict) and list(value) == [INPUT] and isinstance(value[INPUT], str)

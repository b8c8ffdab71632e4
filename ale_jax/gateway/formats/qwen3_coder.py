"""Qwen3-Coder's format:

    <tool_call>
    <function=bash>
    <parameter=command>
    ls
    </parameter>
    </function>
    </tool_call>

Values are written without quotes, so that the tool's schema says what they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from ale_jax.gateway.formats.grammar import Tokens
from ale_jax.gateway.formats.reply import (
    NotACall,
    ParsedReply,
    Tools,
    read_json,
    read_tagged,
    without_marks,
)
from ale_jax.gateway.formats.thoughts import OPEN as THINK
from ale_jax.gateway.formats.thoughts import split_thoughts
from ale_jax.gateway.messages import ToolCall

OPEN = "<tool_call>"
_CALL = re.compile(r"\s*<function=([^>\n]+)>\n?(.*?)</function>\s*</tool_call>", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


class Qwen3Coder:
    markers = (OPEN, THINK)

    def call_grammar(self, tools: Tools, tokens: Tokens, several: bool) -> None:
        """There is none yet."""

    def parse(self, text: str, tools: Tools) -> ParsedReply:
        reasoning, rest = split_thoughts(without_marks(text))
        read_call = partial(_read_call, tools=tools)
        content, calls, malformed = read_tagged(rest, OPEN, read_call)
        return ParsedReply(content, reasoning, tuple(calls), malformed)


def _read_call(text: str, tools: Tools) -> tuple[ToolCall, str]:
    found = _CALL.match(text)
    if not found:
        raise NotACall("no function")
    name, inner = found[1], found[2]
    schema, arguments = tools.get(name, {}).get("properties", {}), {}
    while parameter := _PARAMETER.match(inner):
        if parameter[1] in arguments:
            raise NotACall("a parameter is given twice")
        arguments[parameter[1]] = _value(parameter[2], schema.get(parameter[1], {}))
        inner = inner[parameter.end() :]
    if inner.strip():
        raise NotACall("text between the parameters")
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False)), text[found.end() :]


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """A parameter whose type is not known is a text."""
    kind = schema.get("type", "string")
    if kind == "string" or (isinstance(kind, list) and "string" in kind):
        return text
    try:
        value, rest = read_json(text.strip())
    except NotACall:
        return text
    return text if rest else value

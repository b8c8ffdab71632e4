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
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ale_jax.gateway.formats.grammar import Tokens, json_rule, piece, repeated
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

OPEN, CLOSE = "<tool_call>", "</tool_call>"
END = "\n</parameter>\n"  # of a value
_CALL = re.compile(r"\s*<function=([^>\n]+)>\n?(.*?)</function>\s*</tool_call>", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


class Qwen3Coder:
    markers = (OPEN, THINK)

    def call_grammar(self, tools: Tools, tokens: Tokens, several: bool) -> str | None:
        """None for texts that must match a pattern, which is not looked for in what is written
        without quotes."""
        rules: list[str] = []
        for number, (name, schema) in enumerate(tools.items()):
            parameters = list(_parameters(schema, f"value_{number}", rules))
            if None in parameters:
                return None
            head, end = json.dumps(f"\n<function={name}>\n"), json.dumps("</function>\n")
            rules.append(f"function_{number}: {' '.join([head, *parameters, end])}")
        either = " | ".join(f"function_{number}" for number in range(len(tools)))
        call = f"call: {piece(OPEN, tokens)} ({either}) {piece(CLOSE, tokens)}"
        return "\n".join([f"start: {repeated('call', json.dumps(chr(10)), several)}", call, *rules])

    def parse(self, text: str, tools: Tools) -> ParsedReply:
        reasoning, rest = split_thoughts(without_marks(text))
        read_call = partial(_read_call, tools=tools)
        content, calls, malformed = read_tagged(rest, OPEN, read_call)
        return ParsedReply(content, reasoning, tuple(calls), malformed)


def _parameters(schema: Mapping[str, Any], rule: str, rules: list[str]) -> Iterator[str | None]:
    """The parts of a function's grammar, in the order of its parameters; None for one that there is
    no grammar for. Adds the rules of their values, whose names begin with `rule`."""
    required = _list(schema.get("required"))
    for number, (name, value) in enumerate(_properties(schema).items()):
        own = f"{rule}_{number}"
        if not _is_text(value):
            rules.append(f"{own}: {json_rule(value)} {json.dumps(END)}")
        elif choices := _choices(value):
            either = " | ".join(map(json.dumps, choices))
            rules.append(f"{own}: ({either}) {json.dumps(END)}")
        elif "pattern" in value or "format" in value:
            yield None
        else:
            least, most = _length(value.get("minLength"), "0"), _length(value.get("maxLength"), "")
            rules.append(f"{own}[suffix={json.dumps(END)}]: /(?s:.{{{least},{most}}})/")
        part = f"{json.dumps(f'<parameter={name}>' + chr(10))} {own}"
        yield part if name in required else f"({part})?"


def _properties(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """A client's schema may be anything; what is none says nothing of a value."""
    given = schema.get("properties")
    properties = given if isinstance(given, dict) else {}
    return {name: each if isinstance(each, dict) else {} for name, each in properties.items()}


def _list(given: Any) -> list[Any]:
    return given if isinstance(given, list) else []


def _length(given: Any, without: str) -> str:
    """As a regular expression has it."""
    return str(given) if type(given) is int and given >= 0 else without


def _choices(schema: Mapping[str, Any]) -> list[str]:
    given = [schema["const"]] if "const" in schema else _list(schema.get("enum"))
    return [each for each in given if isinstance(each, str)]


def _is_text(schema: Mapping[str, Any]) -> bool:
    """A parameter whose type is not known is a text."""
    kind = schema.get("type", "string")
    return kind == "string" or (isinstance(kind, list) and "string" in kind)


def _read_call(text: str, tools: Tools) -> tuple[ToolCall, str]:
    found = _CALL.match(text)
    if not found:
        raise NotACall("no function")
    name, inner = found[1], found[2]
    schema, arguments = _properties(tools.get(name, {})), {}
    while parameter := _PARAMETER.match(inner):
        if parameter[1] in arguments:
            raise NotACall("a parameter is given twice")
        arguments[parameter[1]] = _value(parameter[2], schema.get(parameter[1], {}))
        inner = inner[parameter.end() :]
    if inner.strip():
        raise NotACall("text between the parameters")
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False)), text[found.end() :]


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    if _is_text(schema):
        return text
    try:
        value, rest = read_json(text.strip())
    except NotACall:
        return text
    return text if rest else value

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

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property, partial
from typing import Any

from ale_jax.gateway.formats.coder_values import Value
from ale_jax.gateway.formats.grammar import Tokens, piece, repeated
from ale_jax.gateway.formats.reply import (
    THINK,
    NotACall,
    ParsedReply,
    Preview,
    Tools,
    preview_tagged,
    read_tagged,
    split_thoughts,
    without_marks,
)
from ale_jax.gateway.formats.schemas import Document, Option
from ale_jax.gateway.messages import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_CALL = re.compile(r"\s*<function=([^>\n]+)>\n?(.*?)</function>\s*</tool_call>", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


class Qwen3Coder:
    """The format of Qwen3-Coder, as a `ReplyFormat`."""

    markers = (OPEN, THINK)

    def call_grammar(self, tools: Tools, tokens: Tokens, several: bool) -> str | None:
        """Returns the grammar of calls; None for texts that must match a pattern, as `Value.rules`
        says."""
        rules: list[str] = []
        for number, (name, schema) in enumerate(tools.items()):
            parameters = list(Parameters(schema).grammar(f"value_{number}", rules))
            written = [each for each in parameters if each is not None]
            if len(written) < len(parameters):
                return None
            head, end = json.dumps(f"\n<function={name}>\n"), json.dumps("</function>\n")
            rules.append(f"function_{number}: {' '.join([head, *written, end])}")
        either = " | ".join(f"function_{number}" for number in range(len(tools)))
        call = f"call: {piece(OPEN, tokens)} ({either}) {piece(CLOSE, tokens)}"
        return "\n".join([f"start: {repeated('call', json.dumps(chr(10)), several)}", call, *rules])

    def parse(self, text: str, tools: Tools) -> ParsedReply:
        reasoning, rest = split_thoughts(without_marks(text))
        parameters_of = cache(lambda name: Parameters(tools.get(name, {})))
        read_call = partial(_read_call, parameters_of=parameters_of)
        content, calls, malformed = read_tagged(rest, OPEN, read_call)
        return ParsedReply(content, reasoning, tuple(calls), malformed)

    def preview(self, text: str) -> Preview:
        return preview_tagged(text, self.markers)


class Parameters:
    """What the calls of one tool may have. schema: a client's, which may be anything; what is no
    schema says nothing of a value."""

    def __init__(self, schema: Mapping[str, Any]):
        self._document = Document(schema)
        self._values: dict[str, Value] = {}  # those that were read

    def grammar(self, rule: str, rules: list[str]) -> Iterator[str | None]:
        """Yields the parts of the function's grammar, in the order of its parameters; None for one
        that there is no grammar for. Adds the rules of their values, whose names begin with `rule`.

        ValueError if a reference leads nowhere, or if the schema is too much.
        """
        named = (name for each in self._schemas for name in _list(each.get("required")))
        required = {name for name in named if isinstance(name, str)}
        for number, (name, schema) in enumerate(self._properties.items()):
            own = f"{rule}_{number}"
            added = Value(schema, self._document).rules(own)
            rules += added or ()
            part = f"{json.dumps(f'<parameter={name}>' + chr(10))} {own}"
            self._document.spend_chars(len(part) + sum(map(len, added or ())))
            yield None if added is None else part if name in required else f"({part})?"

    def read(self, name: str, text: str) -> Any:
        """Returns the argument that is written so; the text, if the schema does not say what it
        is."""
        if name not in self._values:
            self._values[name] = self._value(name)
        return self._values[name].read(text)

    def _value(self, name: str) -> Value:
        with contextlib.suppress(ValueError):  # which a request hears of that requires a call
            return Value(self._properties.get(name, {}), self._document)
        return Value({}, Document({}))

    @cached_property
    def _schemas(self) -> Option:
        """Those that hold for all objects that satisfy the document's. ValueError as above."""
        root = self._document.schema
        options = self._document.options(root)
        return options[0] if len(options) == 1 else (root,)

    @cached_property
    def _properties(self) -> dict[str, dict[str, Any]]:
        return _properties(self._schemas)


def _properties(schemas: Option) -> dict[str, dict[str, Any]]:
    """The properties' schemas, of schemas that hold together."""
    found: dict[str, list[Any]] = {}
    for each in schemas:
        given = each.get("properties")
        for name, schema in given.items() if isinstance(given, dict) else ():
            found.setdefault(name, []).append(schema if isinstance(schema, dict) else {})
    return {name: each[0] if len(each) == 1 else {"allOf": each} for name, each in found.items()}


def _list(given: Any) -> list[Any]:
    return given if isinstance(given, list) else []


def _read_call(text: str, parameters_of: Callable[[str], Parameters]) -> tuple[ToolCall, str]:
    found = _CALL.match(text)
    if not found:
        raise NotACall("no function")
    name, inner = found[1], found[2]
    parameters, arguments = parameters_of(name), {}
    while parameter := _PARAMETER.match(inner):
        if parameter[1] in arguments:
            raise NotACall("a parameter is given twice")
        arguments[parameter[1]] = parameters.read(parameter[1], parameter[2])
        inner = inner[parameter.end() :]
    if inner.strip():
        raise NotACall("text between the parameters")
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False)), text[found.end() :]

"""Parameters of a tool that a call writes one by one, each in tags and without quotes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any

from ale_jax.gateway.formats.reply import NotACall, Tools
from ale_jax.gateway.formats.schemas import Document, Option
from ale_jax.gateway.formats.unquoted_values import Value
from ale_jax.gateway.messages import ToolCall


@dataclasses.dataclass(frozen=True)
class Tags:
    """What stands around the values of a call. opening: from a parameter's name to the grammar of
    what comes before its value. end: the text behind a value. behind: the grammar of what may
    follow that. marks: what says before a value that it is a text, or JSON; None if nothing says
    it."""

    opening: Callable[[str], str]
    end: str
    behind: str = ""
    marks: tuple[str, str] | None = None

    def rules(self, value: Value, name: str) -> list[str] | None:
        """Returns the rules of a value, as `Value.rules` does."""
        if self.marks is None:
            return value.rules(name, self.end)
        return value.marked_rules(name, self.end, self.marks)


def function_rules(
    tools: Tools, tags: Tags, head: Callable[[str], str], end: str = ""
) -> list[str] | None:
    """Returns rules of a function with its parameters, of which the first, `function`, is any of
    the tools. None if there are none for a value, as `Value.rules` says.

    head: from a tool's name to the grammar of what comes before its parameters. end: the grammar of
    what comes behind them. ValueError as from `Parameters.grammar`.
    """
    rules: list[str] = []
    for number, (name, schema) in enumerate(tools.items()):
        parameters = list(Parameters(schema).grammar(f"value_{number}", rules, tags))
        written = [each for each in parameters if each is not None]
        if len(written) < len(parameters):
            return None
        rules.append(f"function_{number}: {' '.join([head(name), *written, end])}")
    either = " | ".join(f"function_{number}" for number in range(len(tools)))
    return [f"function: {either}", *rules]


def read_call(
    name: str, pairs: Iterable[tuple[str, str]], parameters_of: Callable[[str], Parameters]
) -> ToolCall:
    """Returns the call of a tool with parameters as they are written. NotACall if one is given
    twice."""
    parameters, arguments = parameters_of(name), dict[str, Any]()
    for parameter, text in pairs:
        if parameter in arguments:
            raise NotACall("a parameter is given twice")
        arguments[parameter] = parameters.read(parameter, text)
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False))


def leading(pattern: re.Pattern[str], text: str) -> tuple[list[tuple[str, str]], str]:
    """Returns the two groups of each match that text begins with, and what follows them."""
    found = []
    while match := pattern.match(text):
        found.append((match[1], match[2]))
        text = text[match.end() :]
    return found, text


def parameters_by_name(tools: Tools) -> Callable[[str], Parameters]:
    """Returns the function from a tool's name to its parameters, which are read once."""
    return cache(lambda name: Parameters(tools.get(name, {})))


class Parameters:
    """What the calls of one tool may have. schema: a client's, which may be anything; what is no
    schema says nothing of a value."""

    def __init__(self, schema: Mapping[str, Any]):
        self._document = Document(schema)
        self._values: dict[str, Value] = {}  # those that were read

    def grammar(self, rule: str, rules: list[str], tags: Tags) -> Iterator[str | None]:
        """Yields the parts of the function's grammar, in the order of its parameters; None for one
        that there is no grammar for. Adds the rules of their values, whose names begin with `rule`.

        ValueError if a reference leads nowhere, or if the schema is too much.
        """
        named = (name for each in self._schemas for name in _list(each.get("required")))
        required = {name for name in named if isinstance(name, str)}
        for number, (name, schema) in enumerate(self._properties.items()):
            own = f"{rule}_{number}"
            added = tags.rules(Value(schema, self._document), own)
            rules += added or ()
            part = f"{tags.opening(name)} {own}{tags.behind}"
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

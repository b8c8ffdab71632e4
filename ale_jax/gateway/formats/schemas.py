"""A client's JSON schema as a document, within which its references lead.

Nothing is fetched: a reference is a pointer into the document, or an error. Documents are hostile,
so that the work on each is bounded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

# Keywords whose values are schemas, or lists of them.
SCHEMAS = frozenset(
    {
        *("additionalItems", "additionalProperties", "allOf", "anyOf", "contains", "contentSchema"),
        *("else", "if", "items", "not", "oneOf", "prefixItems", "propertyNames", "then"),
        *("unevaluatedItems", "unevaluatedProperties"),
    }
)
NAMED_SCHEMAS = frozenset({"dependencies", "dependentSchemas", "patternProperties", "properties"})
# Definitions are copied where a reference needs them. Identities would change what pointers mean.
LEFT_OUT = frozenset({"$anchor", "$defs", "$id", "$schema", "definitions", "id"})

MAX_CHARS = 4 << 20  # of all that is made of one document
MAX_STEPS = 1 << 16  # schemas and listed values in all options that are looked for in one document
MAX_NESTED = 64  # choices and references within each other, which are resolved by recursion

# llguidance compiles by recursion, into references, too. Between 1400 and 1600 schemas within each
# other end a thread's stack of 8 MiB, and the process with it.
MAX_LEVELS = 700

Option = tuple[Mapping[str, Any], ...]  # schemas that hold together


class Document:
    """A JSON schema whose references are followed. schema: of the document's root."""

    def __init__(self, schema: Mapping[str, Any]):
        self.schema = schema
        self._chars, self._steps = MAX_CHARS, MAX_STEPS

    def target(self, reference: str) -> Any:
        """Returns what a reference leads to. ValueError, which names it, if that is not in the
        document."""
        if reference not in ("", "#") and not reference.startswith("#/"):
            raise ValueError(f"a $ref must be a pointer within its schema: {reference!r:.200}")
        value: Any = self.schema
        for name in unquote(reference).split("/")[1:]:
            value = _part(value, name.replace("~1", "/").replace("~0", "~"))
            if value is None:
                raise ValueError(f"a $ref leads nowhere: {reference!r:.200}")
        return value

    def alone(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a schema whose references lead into this document, as a document of its own: its
        `$defs` are what they lead to.

        ValueError if a reference leads nowhere, or what they lead to is too much.
        """
        return _Excerpt(self).of(schema)

    def options(self, schema: Any) -> list[Option]:
        """Returns the ways to satisfy a schema of the document: the alternatives of its `anyOf` and
        `oneOf`, each with all else that holds then. What matters of the schemas in an option is
        their other keywords, as `allOf` and references are followed, too.

        ValueError if a reference leads nowhere, or there are too many.
        """
        return self._options(schema, (), 0)

    def spend_chars(self, count: int) -> None:
        """Counts letters that are made of the document. ValueError if there are too many."""
        self._chars -= count
        if self._chars < 0:
            raise ValueError(f"a schema, with what its $refs repeat, may have {MAX_CHARS} letters")

    def _options(self, schema: Any, led: tuple[str, ...], nested: int) -> list[Option]:
        """led: the references that led here."""
        self._spend_steps(_size((schema,)))
        if nested > MAX_NESTED:
            raise ValueError(f"choices and $refs of a schema may be nested {MAX_NESTED} deep")
        if not isinstance(schema, dict):
            return [] if schema is False else [()]
        found: list[Option] = [(schema,)]
        for choice in self._choices(schema, led, nested + 1):
            size = sum(map(_size, found)) * len(choice) + sum(map(_size, choice)) * len(found)
            self._spend_steps(size)  # before the options are made
            found = [option + more for option in found for more in choice]
        return found

    def _choices(
        self, schema: Mapping[str, Any], led: tuple[str, ...], nested: int
    ) -> Iterator[list[Option]]:
        """Of each condition that a schema makes by other schemas, the ways to satisfy it."""
        reference = schema.get("$ref")
        if isinstance(reference, str):
            self._spend_steps(len(reference))
            # What is satisfied only by what satisfies it is satisfied by nothing.
            is_circle = reference in led
            target = False if is_circle else self.target(reference)
            yield self._options(target, (*led, reference), nested)
        for each in _list(schema.get("allOf")):
            yield self._options(each, led, nested)
        for keyword in ("anyOf", "oneOf"):
            if isinstance(choices := schema.get(keyword), list):
                found = (self._options(each, led, nested) for each in choices)
                yield [option for options in found for option in options]

    def _spend_steps(self, count: int) -> None:
        self._steps -= count
        if self._steps < 0:
            raise ValueError("a schema has too many choices within each other")


class _Excerpt:
    """A copy of a schema and of all that its references lead to."""

    def __init__(self, document: Document):
        self._document = document
        self._names: dict[str, str] = {}  # in the excerpt, of what the references lead to
        self._met: list[str] = []  # those references
        self._deepest = 0  # schemas within each other, if each reference lies at the deepest place

    def of(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        dialect = self._document.schema.get("$schema")
        found = {"$schema": dialect} if isinstance(dialect, str) else {}
        found |= self._copy(schema, 1)
        definitions = {}
        for reference in self._met:  # which grows meanwhile
            target = self._document.target(reference)
            definitions[self._names[reference]] = self._copy(target, self._deepest + 1)
        return found | ({"$defs": definitions} if definitions else {})

    def _copy(self, schema: Any, level: int) -> Any:
        if not isinstance(schema, dict):
            return self._data(schema)
        if level > MAX_LEVELS:
            raise ValueError(f"schemas may lie {MAX_LEVELS} deep within each other, by their $refs")
        self._deepest = max(self._deepest, level)
        kept = {key: value for key, value in schema.items() if key not in LEFT_OUT}
        return {key: self._value(key, value, level) for key, value in self._named(kept)}

    def _value(self, keyword: str, value: Any, level: int) -> Any:
        if keyword == "$ref" and isinstance(value, str):
            return self._renamed(value)
        if keyword in NAMED_SCHEMAS and isinstance(value, dict):
            return {name: self._copy(each, level + 1) for name, each in self._named(value)}
        if keyword in SCHEMAS and isinstance(value, list):
            return [self._copy(each, level + 1) for each in value]
        return self._copy(value, level + 1) if keyword in SCHEMAS else self._data(value)

    def _renamed(self, reference: str) -> str:
        if reference not in self._names:
            self._names[reference] = str(len(self._met))
            self._met.append(reference)
        self._document.spend_chars(len(reference))
        return f"#/$defs/{self._names[reference]}"

    def _named(self, parts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, value in parts.items():
            self._document.spend_chars(len(name))
            yield name, value

    def _data(self, value: Any) -> Any:
        """What holds no schemas, though it may look like one."""
        self._document.spend_chars(len(json.dumps(value)))
        return value


def _size(option: Sequence[Any]) -> int:
    """What it costs to look at all of an option."""
    listed = (each.get("enum") for each in option if isinstance(each, dict))
    return len(option) + sum(len(_list(values)) for values in listed)


def _part(value: Any, name: str) -> Any:
    """None if there is none."""
    if isinstance(value, dict):
        return value.get(name)
    is_place = isinstance(value, list) and name.isascii() and name.isdecimal() and len(name) < 9
    return value[int(name)] if is_place and int(name) < len(value) else None


def _list(given: Any) -> Sequence[Any]:
    return given if isinstance(given, list) else ()

"""Values of parameters as Qwen3-Coder and GLM write them: texts without quotes, others as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ale_jax.gateway.formats.grammar import json_rule
from ale_jax.gateway.formats.reply import NotACall, read_json
from ale_jax.gateway.formats.schemas import Document, Option

SPACE, SPACES = " \t\r\n", r"[ \t\r\n]*"  # as JSON has it; and as a regular expression

Kinds = frozenset[str]  # types of JSON; of numbers "integer", and "number" for all others
TEXT: Kinds = frozenset({"string"})
NUMBERS: Kinds = frozenset({"integer", "number"})

# How JSON of a kind begins, or all that there is of it, as regular expressions.
BEGINNINGS = {"array": r"\[", "integer": r"[\-0-9]", "number": r"[\-0-9]", "object": r"\{"}
WORDS = {"boolean": "true|false", "null": "null"}

# Keywords that allow all values of a type. Choices and references are options of their own.
OPEN = frozenset({"$ref", "allOf", "anyOf", "default", "description", "oneOf", "title", "type"})


class Value:
    """What a parameter may be. schema: a part of the document. ValueError if one of its references
    leads nowhere, or if it has too many options."""

    def __init__(self, schema: Mapping[str, Any], document: Document):
        self._schema, self._document = schema, document
        self._options = document.options(schema)
        self._kinds = _union(self._options)

    def read(self, text: str) -> Any:
        """Returns the argument that is written so. If it may be a string, it is one, unless it is
        JSON of another type that the schema names; if not, it is JSON, or the text if there is
        none.

        vLLM's parser for Qwen3-Coder decides so between `string` and other types: 5 is a number for
        `str | int`, but a text for `str | None`, for which null is null.
        """
        if self._kinds == TEXT:
            return text
        try:
            value, rest = read_json(text.strip(SPACE))
        except NotACall:
            return text
        is_text = "string" in self._kinds and kind_of(value) not in self._kinds - TEXT
        return text if rest or is_text else value

    def rules(self, name: str, end: str) -> list[str] | None:
        """Returns rules in Lark for what is read as a value that the schema allows, and the text
        `end` behind it. The first has this name, and the other names begin with it. None if there
        are none, as for texts that must match a pattern, which is not looked for in what is written
        without quotes.

        ValueError as from `Document.alone`.
        """
        ended = json.dumps(end)
        if "string" not in self._kinds:
            return [f"{name}: {json_rule(self._schema, self._document)} {ended}"]
        free = [option for option in self._options if _is_free_text(option)]
        if any(each.keys() & {"pattern", "format"} for option in free for each in option):
            return None
        rules, kinds = {}, self._json_kinds(free)
        if kinds:
            schema = {"allOf": [self._schema, {"type": sorted(kinds)}]}
            rules[f"{name}_json"] = f": {json_rule(schema, self._document)} {ended}"
        for number, option in enumerate(free):
            text = _free_text(option) + self._but_not(kinds)
            rules[f"{name}_text_{number}"] = f"[suffix={ended}]: {text}"
        fixed = [json.dumps(text + end) for text in dict.fromkeys(self._fixed_texts())]
        either = " | ".join([*rules, *fixed])
        own = [rule + body for rule, body in rules.items()]
        return [f"{name}: {either}", *own] if either else None

    def marked_rules(self, name: str, end: str, marks: tuple[str, str]) -> list[str] | None:
        """Returns rules as `rules` does, where a mark before each value says whether it is a text,
        as the first one does, or JSON."""
        is_text, is_json = map(json.dumps, marks)
        free = [option for option in self._options if _is_free_text(option)]
        if any(each.keys() & {"pattern", "format"} for option in free for each in option):
            return None
        rules: dict[str, str] = {}
        if kinds := self._kinds - TEXT:
            schema = {"allOf": [self._schema, {"type": sorted(kinds)}]}
            rules[f"{name}_json"] = f": {json_rule(schema, self._document)} {json.dumps(end)}"
        for number, option in enumerate(free):
            rules[f"{name}_text_{number}"] = f"[suffix={json.dumps(end)}]: {_free_text(option)}"
        texts = (text for text in self._fixed_texts() if self._is_listed_text(text))
        either = [f"{is_json if rule.endswith('_json') else is_text} {rule}" for rule in rules]
        either += [f"{is_text} {json.dumps(text + end)}" for text in dict.fromkeys(texts)]
        own = [rule + body for rule, body in rules.items()]
        return [f"{name}: {' | '.join(either)}", *own] if either else None

    def _is_listed_text(self, text: str) -> bool:
        """Whether it is a string of a list."""
        return any(text in (_listed(option) or ()) for option in self._options)

    def _json_kinds(self, free: Sequence[Option]) -> Kinds:
        """The kinds that have a rule of JSON, if the value may be a string, too. free: options of
        free text, which can write all JSON: what has any value of its type needs no rule."""
        kinds = self._kinds & BEGINNINGS.keys()
        if not free:
            return kinds
        any_value = _union(option for option in self._options if _is_open(option))
        if any_value & NUMBERS != kinds & NUMBERS:
            any_value -= NUMBERS  # which begin in the same way
        return kinds - any_value

    def _but_not(self, kinds: Kinds) -> str:
        """Takes from free text what may be read as JSON of these kinds, or as a word of JSON, which
        have rules of their own. It takes all that begins like JSON, as the lexer does not go back.
        """
        found = [f"{BEGINNINGS[kind]}.*" for kind in sorted(kinds)]
        found += [f"({WORDS[kind]}){SPACES}" for kind in sorted(self._kinds & WORDS.keys())]
        return f" & ~/(?s:{SPACES}({'|'.join(found)}))/" if found else ""

    def _fixed_texts(self) -> Iterator[str]:
        """Strings of a list, and the words of JSON."""
        for option in self._options:
            kinds, listed = _kinds(option) - BEGINNINGS.keys(), _listed(option)
            for value in (None, True, False) if listed is None else listed:
                text = value if isinstance(value, str) else json.dumps(value)
                # A string may look like JSON of another kind, which it would be read as.
                is_text = self.read(text) == value and _has_length(text, option)
                if kind_of(value) in kinds and (is_text or not isinstance(value, str)):
                    self._document.spend_chars(len(text))
                    yield text


def kind_of(value: Any) -> str:
    """Returns the kind of a JSON value."""
    if isinstance(value, bool) or value is None:
        return "null" if value is None else "boolean"
    if isinstance(value, int | float):
        return "integer" if value == int(value) else "number"
    kinds: dict[type, str] = {str: "string", list: "array", dict: "object"}
    return kinds[type(value)]


def _union(options: Iterable[Option]) -> Kinds:
    return frozenset().union(*map(_kinds, options))


def _kinds(option: Option) -> Kinds:
    """Of the values that satisfy it. What says nothing of its type is a string, as vLLM has it."""
    known = [kinds for each in option if (kinds := _named_kinds(each)) is not None]
    return frozenset.intersection(*known) if known else TEXT


def _named_kinds(schema: Mapping[str, Any]) -> Kinds | None:
    """By its type and by its list of values; None if it has neither."""
    given, values = schema.get("type"), _values(schema)
    kinds = None if values is None else frozenset(map(kind_of, values))
    if not isinstance(given, str | list):
        return kinds
    names = {each for each in ([given] if isinstance(given, str) else given) if type(each) is str}
    named = frozenset(names | NUMBERS if "number" in names else names)
    return named if kinds is None else named & kinds


def _values(schema: Mapping[str, Any]) -> list[Any] | None:
    """Those that it lists; None if it does not."""
    given = [schema["const"]] if "const" in schema else schema.get("enum")
    return given if isinstance(given, list) and given else None


def _listed(option: Option) -> list[Any] | None:
    """The values of an option that lists them; None if it does not."""
    lists = [values for each in option if (values := _values(each)) is not None]
    if not lists:
        return None
    written = [set(map(json.dumps, values)) for values in lists[1:]]
    return [value for value in lists[0] if all(json.dumps(value) in each for each in written)]


def _is_free_text(option: Option) -> bool:
    return "string" in _kinds(option) and _listed(option) is None


def _is_open(option: Option) -> bool:
    return all(each.keys() <= OPEN for each in option)


def _free_text(option: Option) -> str:
    least, most = _lengths(option)
    return f"/(?s:.{{{least},{'' if most is None else most}}})/"


def _has_length(text: str, option: Option) -> bool:
    least, most = _lengths(option)
    return least <= len(text) and (most is None or len(text) <= most)


def _lengths(option: Option) -> tuple[int, int | None]:
    """The least and the most letters; None if there is no most. What is no length says nothing."""
    least, most = (
        [each[key] for each in option if type(each.get(key)) is int and each[key] >= 0]
        for key in ("minLength", "maxLength")
    )
    return max(least, default=0), min(most, default=None)

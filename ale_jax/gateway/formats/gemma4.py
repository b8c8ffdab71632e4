"""Gemma 4's format, whose arguments are like JSON with names without quotes:

<|channel>thought
I look first.<channel|><|tool_call>call:bash{command:<|"|>ls<|"|>,seconds:3}<tool_call|>
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from ale_jax.gateway.formats.grammar import Tokens
from ale_jax.gateway.formats.reply import (
    NotACall,
    ParsedReply,
    Preview,
    Tools,
    parse_tagged,
    preview_tagged,
    read_json,
)
from ale_jax.gateway.messages import ToolCall

OPEN, CLOSE = "<|tool_call>", "<tool_call|>"
QUOTE = '<|"|>'
THOUGHTS = ("<|channel>thought\n", "<channel|>")
MAX_NESTED = 64  # values within each other, which are read by recursion
_HEAD = re.compile(r"\s*call:([\w.-]+)(?=\{)")
_KEY = re.compile(r"\s*([^\s:,{}\[\]<>]+)\s*:")
_PLAIN = re.compile(r"\s*(-?[0-9][0-9.eE+-]*|true|false|null|None)")


class Gemma4:
    """The format of Gemma 4, as a `ReplyFormat`."""

    markers, thoughts = (OPEN, THOUGHTS[0]), THOUGHTS

    def call_grammar(self, tools: Tools, tokens: Tokens, several: bool) -> None:
        """Returns None: values are no JSON, which schemas could be compiled for."""

    def parse(self, text: str, tools: Tools) -> ParsedReply:
        return parse_tagged(text, OPEN, _read_call, THOUGHTS)

    def preview(self, text: str) -> Preview:
        return preview_tagged(text, self.markers, THOUGHTS)


def _read_call(text: str) -> tuple[Sequence[ToolCall], str]:
    head = _HEAD.match(text)
    if not head:
        raise NotACall("no name")
    arguments, rest = _read_object(text[head.end() :], 1)
    if not rest.lstrip().startswith(CLOSE):
        raise NotACall("not closed")
    call = ToolCall(head[1], json.dumps(arguments, ensure_ascii=False))
    return [call], rest.lstrip().removeprefix(CLOSE)


def _read_value(text: str, level: int) -> tuple[Any, str]:
    """The value that begins `text`, and what follows it. level: of values within each other."""
    if level > MAX_NESTED:
        raise NotACall(f"values may be nested {MAX_NESTED} deep")
    text = text.lstrip()
    if text.startswith(QUOTE):
        return _read_string(text)
    if text.startswith("{"):
        return _read_object(text, level + 1)
    if text.startswith("["):
        return _read_list(text, level + 1)
    if not (plain := _PLAIN.match(text)):
        raise NotACall("no value")
    value, rest = read_json("null" if plain[1] == "None" else plain[1])
    if rest:
        raise NotACall("no number")
    return value, text[plain.end() :]


def _read_string(text: str) -> tuple[str, str]:
    value, closed, rest = text.removeprefix(QUOTE).partition(QUOTE)
    if not closed:
        raise NotACall("a text that does not end")
    return value, rest


def _read_object(text: str, level: int) -> tuple[dict[str, Any], str]:
    found: dict[str, Any] = {}
    text = text.lstrip().removeprefix("{").lstrip()
    while not text.startswith("}"):
        name, text = _read_name(text)
        if name in found:
            raise NotACall("a name is given twice")
        found[name], text = _read_value(text, level)
        text = _behind_comma(text, "}")
    return found, text[1:]


def _read_name(text: str) -> tuple[str, str]:
    """A name, and what is behind the colon that follows it."""
    if text.startswith(QUOTE):
        name, rest = _read_string(text)
        if not rest.lstrip().startswith(":"):
            raise NotACall("a name without a value")
        return name, rest.lstrip()[1:]
    if not (key := _KEY.match(text)):
        raise NotACall("no name")
    return key[1], text[key.end() :]


def _read_list(text: str, level: int) -> tuple[list[Any], str]:
    found = []
    text = text.lstrip().removeprefix("[").lstrip()
    while not text.startswith("]"):
        value, text = _read_value(text, level)
        found.append(value)
        text = _behind_comma(text, "]")
    return found, text[1:]


def _behind_comma(text: str, closing: str) -> str:
    """What follows a comma; the text itself, if the list or object ends here."""
    text = text.lstrip()
    if text.startswith(","):
        return text[1:].lstrip()
    if not text.startswith(closing):
        raise NotACall("neither a comma nor an end")
    return text

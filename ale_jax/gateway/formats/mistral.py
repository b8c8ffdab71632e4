"""Mistral's formats. The first is a list. Later ones give each call a special token, and v11 writes
an id behind the name:

    [TOOL_CALLS][{"name": "bash", "arguments": {"command": "ls"}, "id": "a1b2c3d4e"}]
    [TOOL_CALLS]bash[CALL_ID]a1b2c3d4e[ARGS]{"command": "ls"}
    [TOOL_CALLS]bash[ARGS]{"command": "ls"}

All of them are read by each; what a model is made to write is that of its template.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

from ale_jax.gateway.formats.grammar import Tokens, call_bodies, json_rule, piece, repeated
from ale_jax.gateway.formats.reply import (
    MARK,
    NotACall,
    ParsedReply,
    Preview,
    Tools,
    call_of,
    preview_text,
    read_json,
    sendable,
    special,
    without_marks,
)
from ale_jax.gateway.messages import ToolCall
from ale_jax.tagged_text import split_thoughts

COMMA = '", "'  # between the calls of a list
CALLS, ARGS, CALL_ID = map(special, ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"))
THOUGHTS = special("[THINK]"), special("[/THINK]")
_NAME_BEFORE_ARGS = re.compile(
    rf"\s*([\w.-]+)\s*(?:{re.escape(CALL_ID)}(\w*))?(?:{re.escape(ARGS)})?"
)


class Mistral:
    """The format of Mistral's tokenizers up to v7, as a `ReplyFormat`."""

    markers, thoughts = (CALLS, THOUGHTS[0]), THOUGHTS

    def call_grammar(self, tools: Tools, tokens: Tokens, several: bool) -> str:
        start = f'{piece(without_marks(CALLS), tokens)} "[" {repeated("body", COMMA, several)} "]"'
        return "\n".join([f"start: {start}", call_bodies(tools)])

    def parse(self, text: str, tools: Tools) -> ParsedReply:
        thoughts, rest = split_thoughts(text, THOUGHTS)
        content, *parts = rest.split(CALLS)
        calls, malformed = [], 0
        for part in parts:
            try:
                calls += _read_announced_calls(part)
            except NotACall:
                content, malformed = content + CALLS + part, malformed + 1
        said, thought = without_marks(content).strip(), without_marks(thoughts).strip()
        return ParsedReply(said, thought, tuple(calls), malformed)

    def preview(self, text: str) -> Preview:
        opening, closing = THOUGHTS
        opened = text.lstrip().removeprefix(opening)
        if text.lstrip().startswith(opening) and closing not in opened:
            return Preview(opened[: sendable(opened, (MARK,))].strip())
        thoughts, rest = split_thoughts(text, THOUGHTS)
        return Preview(without_marks(thoughts).strip(), preview_text(rest, self.markers).content)


class MistralNamed(Mistral):
    """The format of Mistral's tokenizers from v13 on."""

    def call_grammar(self, tools: Tools, tokens: Tokens, several: bool) -> str:
        rules = [f"start: {repeated('call', '', several)}"]
        rules.append(f"call: {' | '.join(f'call_{n}' for n in range(len(tools)))}")
        rules.append("id: /[a-zA-Z0-9]{9}/")
        for n, (name, parameters) in enumerate(tools.items()):
            head = f"{piece(without_marks(CALLS), tokens)} {json.dumps(name)}{self._id(tokens)}"
            rules.append(f"call_{n}: {head} {piece(without_marks(ARGS), tokens)} arguments_{n}")
            rules.append(f"arguments_{n}: {json_rule(parameters or {'type': 'object'})}")
        return "\n".join(rules)

    def _id(self, tokens: Tokens) -> str:
        return ""


class MistralV11(MistralNamed):
    """The format of Mistral's tokenizer v11."""

    def _id(self, tokens: Tokens) -> str:
        return f" {piece(without_marks(CALL_ID), tokens)} id"


def _id_in(body: Mapping[str, Any]) -> str:
    """The id that the model gave a call of a list; "" if it is none that templates take."""
    id = body.get("id")
    return id if isinstance(id, str) and re.fullmatch(r"[a-zA-Z0-9]{9}", id) else ""


def _read_announced_calls(text: str) -> list[ToolCall]:
    """Those after one token."""
    if text.lstrip().startswith("["):
        bodies, rest = read_json(text.lstrip())
        calls = [dataclasses.replace(call_of(each), id=_id_in(each)) for each in bodies]
    else:
        name = _NAME_BEFORE_ARGS.match(text)
        if not name:
            raise NotACall("no name")
        arguments, rest = read_json(text[name.end() :].lstrip())
        call = call_of({"name": name[1], "arguments": arguments})
        calls = [dataclasses.replace(call, id=name[2] or "")]
    if rest.strip():
        raise NotACall("text after the call")
    return calls

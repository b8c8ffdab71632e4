"""Mistral's formats. The first is a list, the later one gives each call a special token:

[TOOL_CALLS][{"name": "bash", "arguments": {"command": "ls"}}]
[TOOL_CALLS]bash[ARGS]{"command": "ls"}
"""

from __future__ import annotations

import re

from ale_jax.gateway.formats.grammar import Tokens, call_bodies, piece, repeated
from ale_jax.gateway.formats.reply import (
    NotACall,
    ParsedReply,
    Tools,
    call_of,
    read_json,
    special,
    without_marks,
)
from ale_jax.gateway.messages import ToolCall

COMMA = '", "'  # between calls
CALLS, ARGS, CALL_ID = map(special, ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"))
_NAME = re.compile(rf"\s*([\w.-]+)\s*(?:{re.escape(CALL_ID)}\w*)?(?:{re.escape(ARGS)})?")


class Mistral:
    markers = (CALLS,)

    def call_grammar(self, tools: Tools, tokens: Tokens, several: bool) -> str:
        start = f'{piece(without_marks(CALLS), tokens)} "[" {repeated("body", COMMA, several)} "]"'
        return "\n".join([f"start: {start}", call_bodies(tools)])

    def parse(self, text: str, tools: Tools) -> ParsedReply:
        content, *parts = text.split(CALLS)
        calls, malformed = [], 0
        for part in parts:
            try:
                calls += _read_calls(part)
            except NotACall:
                content, malformed = content + CALLS + part, malformed + 1
        return ParsedReply(without_marks(content).strip(), "", tuple(calls), malformed)


def _read_calls(text: str) -> list[ToolCall]:
    """Those after one token."""
    if text.lstrip().startswith("["):
        bodies, rest = read_json(text.lstrip())
        calls = list(map(call_of, bodies))
    else:
        name = _NAME.match(text)
        if not name:
            raise NotACall("no name")
        arguments, rest = read_json(text[name.end() :].lstrip())
        calls = [call_of({"name": name[1], "arguments": arguments})]
    if rest.strip():
        raise NotACall("text after the call")
    return calls

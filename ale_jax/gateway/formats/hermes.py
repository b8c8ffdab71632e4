"""Hermes' format, which Qwen2.5 and Qwen3 use, and our own small policies:

<tool_call>
{"name": "bash", "arguments": {"command": "ls"}}
</tool_call>
"""

from __future__ import annotations

from ale_jax.gateway.formats.grammar import Tokens, call_bodies, piece, repeated
from ale_jax.gateway.formats.reply import (
    NotACall,
    ParsedReply,
    Tools,
    call_of,
    read_json,
    read_tagged,
    without_marks,
)
from ale_jax.gateway.formats.thoughts import OPEN as THINK
from ale_jax.gateway.formats.thoughts import split_thoughts
from ale_jax.gateway.messages import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class Hermes:
    markers = (OPEN, THINK)

    def call_grammar(self, tools: Tools, tokens: Tokens, several: bool) -> str:
        opening, close = piece(OPEN, tokens), piece(CLOSE, tokens)
        start = repeated("call", '"\\n"', several)
        call = f'call: {opening} "\\n" body "\\n" {close}'
        return "\n".join([f"start: {start}", call, call_bodies(tools)])

    def parse(self, text: str, tools: Tools) -> ParsedReply:
        reasoning, rest = split_thoughts(without_marks(text))
        content, calls, malformed = read_tagged(rest, OPEN, _read_call)
        return ParsedReply(content, reasoning, tuple(calls), malformed)


def _read_call(text: str) -> tuple[ToolCall, str]:
    body, rest = read_json(text.lstrip())
    before, closed, rest = rest.partition(CLOSE)
    if before.strip() or not closed:
        raise NotACall("not closed")
    return call_of(body), rest

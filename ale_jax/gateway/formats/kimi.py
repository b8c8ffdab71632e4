"""Kimi K2's format, in which the model numbers its calls over the whole conversation:

    <|tool_calls_section_begin|><|tool_call_begin|>functions.bash:0<|tool_call_argument_begin|>
    {"command": "ls"}<|tool_call_end|><|tool_calls_section_end|>

Results name their call by what the model called it.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence

from ale_jax.gateway.formats.grammar import Tokens, json_rule, piece, repeated
from ale_jax.gateway.formats.reply import (
    NotACall,
    ParsedReply,
    Preview,
    Tools,
    parse_tagged,
    preview_tagged,
    read_arguments,
    read_section,
)
from ale_jax.gateway.messages import ToolCall
from ale_jax.tagged_text import THINK, THOUGHTS

SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
OPEN, ARGUMENTS, CLOSE = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_HEAD = re.compile(rf"\s*((?:functions\.)?([\w.-]+):\d+)\s*{re.escape(ARGUMENTS)}")


class Kimi:
    """The format of Kimi K2, as a `ReplyFormat`."""

    markers, thoughts = (SECTION, THINK), THOUGHTS

    def call_grammar(self, tools: Tools, tokens: Tokens, several: bool) -> str:
        def tag(text: str) -> str:
            return piece(text, tokens)

        calls = repeated("call", "", several)
        rules = [f"start: {tag(SECTION)} {calls} {tag(SECTION_END)}"]
        rules.append(f"call: {' | '.join(f'call_{n}' for n in range(len(tools)))}")
        rules.append("number: /[0-9]{1,4}/")
        for n, (name, parameters) in enumerate(tools.items()):
            head = f"{tag(OPEN)} {json.dumps(f'functions.{name}:')} number {tag(ARGUMENTS)}"
            rules.append(f"call_{n}: {head} arguments_{n} {tag(CLOSE)}")
            rules.append(f"arguments_{n}: {json_rule(parameters or {'type': 'object'})}")
        return "\n".join(rules)

    def parse(self, text: str, tools: Tools) -> ParsedReply:
        return parse_tagged(text, SECTION, _read_section)

    def preview(self, text: str) -> Preview:
        return preview_tagged(text, self.markers)


def _read_section(text: str) -> tuple[Sequence[ToolCall], str]:
    calls, rest = read_section(text, OPEN, SECTION_END, _read_call)
    if len({call.id for call in calls}) < len(calls):
        raise NotACall("two calls with the same number")
    return calls, rest


def _read_call(text: str) -> tuple[ToolCall, str]:
    head = _HEAD.match(text)
    if not head:
        raise NotACall("no name")
    call, rest = read_arguments(head[2], text[head.end() :], CLOSE)
    return dataclasses.replace(call, id=head[1]), rest

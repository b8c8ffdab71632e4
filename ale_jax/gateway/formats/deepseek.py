"""DeepSeek's formats, of V3 and R1, and of V3.1:

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>bash
```json
{"command": "ls"}
```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>bash<｜tool▁sep｜>{"command": "ls"}<｜tool▁call▁end｜>
<｜tool▁calls▁end｜>
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from ale_jax.gateway.formats.grammar import Tokens, json_rule, piece, repeated
from ale_jax.gateway.formats.reply import (
    NotACall,
    ParsedReply,
    Preview,
    Tools,
    call_of,
    parse_tagged,
    preview_tagged,
    read_arguments,
    read_json,
    read_section,
)
from ale_jax.gateway.messages import ToolCall
from ale_jax.tagged_text import THINK, THOUGHTS

SECTION, SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
OPEN, BETWEEN, CLOSE = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
FENCE, FENCE_END = "```json\n", "\n```"
_HEAD = re.compile(rf"\s*([\w.-]+)\s*{BETWEEN}")
_FENCED_HEAD = re.compile(rf"\s*function\s*{BETWEEN}\s*([\w.-]+)\s*{FENCE.strip()}\s*")
_FENCED_END = re.compile(rf"\s*```\s*{CLOSE}")


class DeepSeek:
    """The format of DeepSeek V3.1, as a `ReplyFormat`."""

    markers, thoughts = (SECTION, THINK), THOUGHTS
    between_calls = ""

    def call_grammar(self, tools: Tools, tokens: Tokens, several: bool) -> str:
        opening, closing = piece(SECTION, tokens), piece(SECTION_END, tokens)
        calls = repeated("call", self.between_calls, several)
        rules = [f"start: {opening} {calls} {closing}"]
        rules.append(f"call: {' | '.join(f'call_{n}' for n in range(len(tools)))}")
        for n, (name, parameters) in enumerate(tools.items()):
            inner = self._inner(name, f"arguments_{n}", tokens)
            rules.append(f"call_{n}: {piece(OPEN, tokens)} {inner} {piece(CLOSE, tokens)}")
            rules.append(f"arguments_{n}: {json_rule(parameters or {'type': 'object'})}")
        return "\n".join(rules)

    def parse(self, text: str, tools: Tools) -> ParsedReply:
        return parse_tagged(text, SECTION, self._read_section)

    def preview(self, text: str) -> Preview:
        return preview_tagged(text, self.markers)

    def _inner(self, name: str, arguments: str, tokens: Tokens) -> str:
        """The grammar of what a call has between its tags."""
        return f"{json.dumps(name)} {piece(BETWEEN, tokens)} {arguments}"

    def _read_section(self, text: str) -> tuple[Sequence[ToolCall], str]:
        return read_section(text, OPEN, SECTION_END, self._read_call)

    def _read_call(self, text: str) -> tuple[ToolCall, str]:
        head = _HEAD.match(text)
        if not head:
            raise NotACall("no name")
        return read_arguments(head[1], text[head.end() :], CLOSE)


class DeepSeekV3(DeepSeek):
    """The format of DeepSeek V3 and R1, whose arguments are fenced."""

    between_calls = '"\\n"'

    def _inner(self, name: str, arguments: str, tokens: Tokens) -> str:
        head = json.dumps(f"{name}\n{FENCE}")
        return f'"function" {piece(BETWEEN, tokens)} {head} {arguments} {json.dumps(FENCE_END)}'

    def _read_call(self, text: str) -> tuple[ToolCall, str]:
        head = _FENCED_HEAD.match(text)
        if not head:
            raise NotACall("no name")
        arguments, rest = read_json(text[head.end() :])
        end = _FENCED_END.match(rest)
        if not end:
            raise NotACall("not closed")
        return call_of({"name": head[1], "arguments": arguments}), rest[end.end() :]

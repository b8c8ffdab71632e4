"""The format of DeepSeek V3.2, in which each value says whether it is a text or JSON:

<｜DSML｜function_calls>
<｜DSML｜invoke name="bash">
<｜DSML｜parameter name="command" string="true">ls</｜DSML｜parameter>
</｜DSML｜invoke>
</｜DSML｜function_calls>
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from ale_jax.gateway.formats.grammar import Tokens, repeated
from ale_jax.gateway.formats.parameters import Tags, function_rules
from ale_jax.gateway.formats.reply import (
    NotACall,
    ParsedReply,
    Preview,
    Tools,
    parse_tagged,
    preview_tagged,
    read_json,
    read_section,
)
from ale_jax.gateway.messages import ToolCall
from ale_jax.tagged_text import THINK, THOUGHTS

MARK = "｜DSML｜"
OPEN, CLOSE = f"<{MARK}function_calls>", f"</{MARK}function_calls>"
INVOKE, INVOKED = f"<{MARK}invoke", f"</{MARK}invoke>"
VALUE_END = f"</{MARK}parameter>"
_NAME = re.compile(r'\s+name="([^"<>]+)"\s*>\s*')
_PARAMETER = re.compile(
    rf'<{MARK}parameter\s+name="([^"<>]+)"\s+string="(true|false)"\s*>(.*?){VALUE_END}\s*',
    re.DOTALL,
)


class Dsml:
    """The format of DeepSeek V3.2, as a `ReplyFormat`."""

    markers, thoughts = (OPEN, THINK), THOUGHTS

    def call_grammar(self, tools: Tools, tokens: Tokens, several: bool) -> str | None:
        """Returns the grammar of calls; None for texts that must match a pattern, as `Value.rules`
        says."""
        tags = Tags(_opening, VALUE_END, ' "\\n"', ('string="true">', 'string="false">'))
        head, end = f"{INVOKE} name=", json.dumps(f"{INVOKED}\n")
        rules = function_rules(tools, tags, lambda name: json.dumps(f'{head}"{name}">\n'), end)
        if rules is None:
            return None
        calls = repeated("function", "", several)
        return "\n".join(
            [f"start: {json.dumps(OPEN + chr(10))} {calls} {json.dumps(CLOSE)}", *rules]
        )

    def parse(self, text: str, tools: Tools) -> ParsedReply:
        return parse_tagged(text, OPEN, _read_section)

    def preview(self, text: str) -> Preview:
        return preview_tagged(text, self.markers)


def _opening(name: str) -> str:
    return json.dumps(f'<{MARK}parameter name="{name}" ')


def _read_section(text: str) -> tuple[Sequence[ToolCall], str]:
    return read_section(text, INVOKE, CLOSE, _read_call)


def _read_call(text: str) -> tuple[ToolCall, str]:
    name = _NAME.match(text)
    if not name:
        raise NotACall("no name")
    text, arguments = text[name.end() :], dict[str, Any]()
    while found := _PARAMETER.match(text):
        if found[1] in arguments:
            raise NotACall("a parameter is given twice")
        arguments[found[1]] = found[3] if found[2] == "true" else _json(found[3])
        text = text[found.end() :]
    if not text.startswith(INVOKED):
        raise NotACall("not closed")
    call = ToolCall(name[1], json.dumps(arguments, ensure_ascii=False))
    return call, text.removeprefix(INVOKED)


def _json(text: str) -> Any:
    value, rest = read_json(text.strip())
    if rest:
        raise NotACall("text after a value")
    return value

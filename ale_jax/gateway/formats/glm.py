"""GLM's format, of 4.5 and later:

    <tool_call>bash
    <arg_key>command</arg_key>
    <arg_value>ls</arg_value>
    </tool_call>

From 4.7 on, there are no line breaks. Values are written without quotes, as by Qwen3-Coder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import partial

from ale_jax.gateway.formats.grammar import Tokens, piece, repeated
from ale_jax.gateway.formats.parameters import (
    Parameters,
    Tags,
    function_rules,
    leading,
    parameters_by_name,
    read_call,
)
from ale_jax.gateway.formats.reply import (
    NotACall,
    ParsedReply,
    Preview,
    Tools,
    parse_tagged,
    preview_tagged,
)
from ale_jax.gateway.messages import ToolCall
from ale_jax.tagged_text import THINK, THOUGHTS

OPEN, CLOSE = "<tool_call>", "</tool_call>"
BREAK = ' "\\n"?'  # that a version may write
_NAME = re.compile(r"\s*([^\s<>]+)\s*")
_PARAMETER = re.compile(
    r"\s*<arg_key>([^<]+)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL
)


class Glm:
    """The format of GLM 4.5 and later, as a `ReplyFormat`."""

    markers, thoughts = (OPEN, THINK), THOUGHTS

    def call_grammar(self, tools: Tools, tokens: Tokens, several: bool) -> str | None:
        """Returns the grammar of calls; None for texts that must match a pattern, as `Value.rules`
        says."""

        def opening(name: str) -> str:
            key = f"{piece('<arg_key>', tokens)} {json.dumps(name)} {piece('</arg_key>', tokens)}"
            return f"{key}{BREAK} {piece('<arg_value>', tokens)}"

        tags = Tags(opening, "</arg_value>", BREAK)
        rules = function_rules(tools, tags, lambda name: json.dumps(name) + BREAK)
        if rules is None:
            return None
        call = f"call: {piece(OPEN, tokens)} function {piece(CLOSE, tokens)}"
        return "\n".join([f"start: {repeated('call', json.dumps(chr(10)), several)}", call, *rules])

    def parse(self, text: str, tools: Tools) -> ParsedReply:
        read = partial(_read_call, parameters_of=parameters_by_name(tools))
        return parse_tagged(text, OPEN, read)

    def preview(self, text: str) -> Preview:
        return preview_tagged(text, self.markers)


def _read_call(
    text: str, parameters_of: Callable[[str], Parameters]
) -> tuple[Sequence[ToolCall], str]:
    name = _NAME.match(text)
    if not name:
        raise NotACall("no name")
    pairs, rest = leading(_PARAMETER, text[name.end() :])
    if not rest.startswith(CLOSE):
        raise NotACall("not closed")
    return [read_call(name[1], pairs, parameters_of)], rest.removeprefix(CLOSE)

"""Qwen3-Coder's format:

    <tool_call>
    <function=bash>
    <parameter=command>
    ls
    </parameter>
    </function>
    </tool_call>

Values are written without quotes, so that the tool's schema says what they are.
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
TAGS = Tags(lambda name: json.dumps(f"<parameter={name}>\n"), "\n</parameter>\n")
_CALL = re.compile(r"\s*<function=([^>\n]+)>\n?(.*?)</function>\s*</tool_call>", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


class Qwen3Coder:
    """The format of Qwen3-Coder, as a `ReplyFormat`."""

    markers, thoughts = (OPEN, THINK), THOUGHTS

    def call_grammar(self, tools: Tools, tokens: Tokens, several: bool) -> str | None:
        """Returns the grammar of calls; None for texts that must match a pattern, as `Value.rules`
        says."""
        rules = function_rules(
            tools, TAGS, lambda name: json.dumps(f"\n<function={name}>\n"), '"</function>\\n"'
        )
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
    found = _CALL.match(text)
    if not found:
        raise NotACall("no function")
    pairs, rest = leading(_PARAMETER, found[2])
    if rest.strip():
        raise NotACall("text between the parameters")
    return [read_call(found[1], pairs, parameters_of)], text[found.end() :]

"""The formats in which a call is a JSON object of the tool's name and its arguments. They differ in
what shows that an object is a call.
"""

from __future__ import annotations

from collections.abc import Sequence

from ale_jax.gateway.formats.grammar import Tokens, call_bodies, piece, repeated
from ale_jax.gateway.formats.reply import (
    NotACall,
    ParsedReply,
    Preview,
    Tools,
    call_of,
    parse_tagged,
    preview_tagged,
    preview_text,
    read_json,
    special,
    split_marked,
    without_marks,
)
from ale_jax.gateway.messages import ToolCall
from ale_jax.tagged_text import THINK, THOUGHTS

OPEN, CLOSE = "<tool_call>", "</tool_call>"
ANNOUNCED = special("<|python_tag|>")
FENCES = ("```json", "```")


class Hermes:
    """Hermes' format, which Qwen2.5 and Qwen3 use, and our own small policies:

    <tool_call>
    {"name": "bash", "arguments": {"command": "ls"}}
    </tool_call>
    """

    markers, thoughts = (OPEN, THINK), THOUGHTS

    def call_grammar(self, tools: Tools, tokens: Tokens, several: bool) -> str:
        opening, close = piece(OPEN, tokens), piece(CLOSE, tokens)
        start = repeated("call", '"\\n"', several)
        call = f'call: {opening} "\\n" body "\\n" {close}'
        return "\n".join([f"start: {start}", call, call_bodies(tools)])

    def parse(self, text: str, tools: Tools) -> ParsedReply:
        return parse_tagged(text, OPEN, _read_tagged_call)

    def preview(self, text: str) -> Preview:
        return preview_tagged(text, self.markers)


def _read_tagged_call(text: str) -> tuple[Sequence[ToolCall], str]:
    body, rest = read_json(text.lstrip())
    before, closed, rest = rest.partition(CLOSE)
    if before.strip() or not closed:
        raise NotACall("not closed")
    return [call_of(body)], rest


class Llama3:
    """Llama 3's format: a reply that is one object, or several separated by semicolons, with the
    arguments under "parameters". A special token may announce it; without, the reply may be an
    answer in JSON, so that a call must name a tool that there is."""

    markers, thoughts = (ANNOUNCED, "{"), None

    def call_grammar(self, tools: Tools, tokens: Tokens, several: bool) -> str:
        start = repeated("body", '"; "', several)
        return "\n".join([f"start: {start}", call_bodies(tools, "parameters")])

    def parse(self, text: str, tools: Tools) -> ParsedReply:
        before, announced, after = text.partition(ANNOUNCED)
        body = without_marks(after if announced else before).strip()
        if not announced and _is_answer(body, tools):
            return ParsedReply(body)
        try:
            calls = _read_row_of_calls(body)
            if not announced and any(call.name not in tools for call in calls):
                raise NotACall("another object beside the calls")
        except NotACall:
            return ParsedReply(without_marks(text).strip(), malformed=1)
        return ParsedReply(without_marks(before).strip() if announced else "", calls=tuple(calls))

    def preview(self, text: str) -> Preview:
        return preview_text(text, self.markers)


def _is_answer(text: str, tools: Tools) -> bool:
    """Whether a reply that announces no call does not begin with one. JSON that cannot be read may
    have been meant as a call, if there are tools."""
    if not (tools and text.startswith("{")):
        return True
    try:
        body, _ = read_json(text)
    except NotACall:
        return False
    name = body.get("name")
    return not (isinstance(name, str) and name in tools)


def _read_row_of_calls(text: str) -> list[ToolCall]:
    calls, rest = [], text.strip()
    while rest:
        body, rest = read_json(rest)
        field = "parameters" if isinstance(body, dict) and "parameters" in body else "arguments"
        calls.append(call_of(body, field))
        rest = rest.strip()
        if rest and not rest.startswith(";"):
            raise NotACall("text after the call")
        rest = rest.removeprefix(";").strip()
    if not calls:
        raise NotACall("no call")
    return calls


class PlainJson:
    """For models that were taught no format: an object at the end of the reply, bare or in a fence,
    which names a tool that there is."""

    markers, thoughts = ("{", "```", THINK), THOUGHTS

    def call_grammar(self, tools: Tools, tokens: Tokens, several: bool) -> str:
        """Returns the grammar of one call, which is all that the format has."""
        return "\n".join(["start: body", call_bodies(tools)])

    def parse(self, text: str, tools: Tools) -> ParsedReply:
        reasoning, text = split_marked(text, THOUGHTS)
        before, brace, after = text.partition("{")
        if not brace:
            return ParsedReply(text.strip(), reasoning)
        try:
            body, rest = read_json(brace + after)
            call = call_of(body)
        except NotACall:
            return ParsedReply(text.strip(), reasoning)  # an answer may have braces
        if call.name not in tools or rest.replace("```", "").strip():
            return ParsedReply(text.strip(), reasoning)
        content = before.rstrip()
        for fence in FENCES:
            content = content.removesuffix(fence)
        return ParsedReply(content.strip(), reasoning, (call,))

    def preview(self, text: str) -> Preview:
        return preview_tagged(text, self.markers)

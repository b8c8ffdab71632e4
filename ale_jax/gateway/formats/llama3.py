"""Llama 3's format: a reply that is one JSON object, or several separated by semicolons, with the
arguments under "parameters". A special token may announce it."""

from __future__ import annotations

from ale_jax.gateway.formats.grammar import Tokens, call_bodies, repeated
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

ANNOUNCED = special("<|python_tag|>")


class Llama3:
    markers = (ANNOUNCED, "{")

    def call_grammar(self, tools: Tools, tokens: Tokens, several: bool) -> str:
        start = repeated("body", '"; "', several)
        return "\n".join([f"start: {start}", call_bodies(tools, "parameters")])

    def parse(self, text: str, tools: Tools) -> ParsedReply:
        before, announced, after = text.partition(ANNOUNCED)
        body = after if announced else before
        content = without_marks(before).strip() if announced else ""
        if announced or body.lstrip().startswith("{"):
            try:
                return ParsedReply(content, calls=tuple(_read_calls(without_marks(body))))
            except NotACall:
                return ParsedReply(without_marks(text).strip(), malformed=1)
        return ParsedReply(without_marks(text).strip())


def _read_calls(text: str) -> list[ToolCall]:
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

"""Llama 3's format: a reply that is one JSON object, or several separated by semicolons, with the
arguments under "parameters". A special token may announce it; without, the reply may be an answer
in JSON, so that a call must name a tool that there is."""

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
        body = without_marks(after if announced else before).strip()
        if not announced and _is_answer(body, tools):
            return ParsedReply(body)
        try:
            calls = _read_calls(body)
            if not announced and any(call.name not in tools for call in calls):
                raise NotACall("another object beside the calls")
        except NotACall:
            return ParsedReply(without_marks(text).strip(), malformed=1)
        return ParsedReply(without_marks(before).strip() if announced else "", calls=tuple(calls))


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

"""For models that were taught no format: a JSON object at the end of the reply, bare or in a fence,
which names a tool that there is."""

from __future__ import annotations

from ale_jax.gateway.formats.grammar import Tokens, call_bodies
from ale_jax.gateway.formats.reply import (
    NotACall,
    ParsedReply,
    Tools,
    call_of,
    read_json,
    without_marks,
)

FENCES = ("```json", "```")


class PlainJson:
    markers = ("{", "```")

    def call_grammar(self, tools: Tools, tokens: Tokens, several: bool) -> str:
        """One call is all that the format has."""
        return "\n".join(["start: body", call_bodies(tools)])

    def parse(self, text: str, tools: Tools) -> ParsedReply:
        text = without_marks(text)
        before, brace, after = text.partition("{")
        if not brace:
            return ParsedReply(text.strip())
        try:
            body, rest = read_json(brace + after)
            call = call_of(body)
        except NotACall:
            return ParsedReply(text.strip())  # an answer may have braces
        if call.name not in tools or rest.replace("```", "").strip():
            return ParsedReply(text.strip())
        content = before.rstrip()
        for fence in FENCES:
            content = content.removesuffix(fence)
        return ParsedReply(content.strip(), calls=(call,))

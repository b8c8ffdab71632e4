"""The harmony format of gpt-oss: a reply is a row of messages, each in a channel.

    <|channel|>analysis<|message|>thoughts<|end|><|start|>assistant<|channel|>commentary
    to=functions.bash <|constrain|>json<|message|>{"command": "ls"}<|call|>

The channel `final` has the content, and so has `commentary` without a recipient.
"""

from __future__ import annotations

import json
import re

from ale_jax.gateway.formats.grammar import Tokens, json_rule, piece
from ale_jax.gateway.formats.reply import (
    MARK,
    NotACall,
    ParsedReply,
    Preview,
    Tools,
    call_of,
    read_json,
    sendable,
    special,
    without_marks,
)
from ale_jax.gateway.messages import ToolCall

PIECES = ("<|channel|>", "<|constrain|>", "<|message|>", "<|call|>")
ANALYSIS = special("<|channel|>") + "analysis"
MESSAGE = special("<|message|>")
END, CALL, RETURN = map(special, ("<|end|>", "<|call|>", "<|return|>"))
_ENDS = re.compile("|".join(map(re.escape, (END, CALL, RETURN))))
_RECIPIENT = re.compile(r"to=functions\.([\w.-]+)")


class Harmony:
    """The format of gpt-oss, as a `ReplyFormat`."""

    markers, thoughts = ("",), None  # whatever begins a reply may be the head of a message

    def call_grammar(self, tools: Tools, tokens: Tokens, several: bool) -> str | None:
        """Returns the grammar of one call, as `<|call|>` ends a reply. None if these pieces are no
        tokens."""
        if not tokens.keys() >= set(PIECES):
            return None
        channel, constrain, message, call = (piece(text, tokens) for text in PIECES)
        rules = ["start: " + " | ".join(f"call_{number}" for number in range(len(tools)))]
        for number, (name, parameters) in enumerate(tools.items()):
            to = json.dumps(f"commentary to=functions.{name} ")
            head = f'{channel} {to} {constrain} "json" {message}'
            rules.append(f"call_{number}: {head} arguments_{number} {call}")
            rules.append(f"arguments_{number}: {json_rule(parameters or {'type': 'object'})}")
        return "\n".join(rules)

    def parse(self, text: str, tools: Tools) -> ParsedReply:
        content, thoughts, calls, malformed = [], [], [], 0
        for part in filter(str.strip, _ENDS.split(text)):
            header, found, body = part.partition(MESSAGE)
            if not found:
                content.append(part)
                continue
            recipient = _RECIPIENT.search(header)
            if recipient:
                try:
                    calls.append(_read_call(recipient[1], body))
                except NotACall:
                    content, malformed = [*content, part], malformed + 1
            elif _is_thought(header):
                thoughts.append(body)
            else:
                content.append(body)
        said, thought = (without_marks("\n".join(each)).strip() for each in (content, thoughts))
        return ParsedReply(said, thought, tuple(calls), malformed)

    def preview(self, text: str) -> Preview:
        """Returns the thoughts. More of them may follow any content, which is therefore known at
        the end."""
        *whole, last = _ENDS.split(text)
        header, found, body = last.partition(MESSAGE)
        parts = [*whole, header + found + body[: sendable(body, (MARK,))]]
        split = (part.partition(MESSAGE) for part in parts)
        thoughts = [body for header, found, body in split if found and _is_thought(header)]
        return Preview(without_marks("\n".join(thoughts)).strip())


def _is_thought(header: str) -> bool:
    return ANALYSIS in header and not _RECIPIENT.search(header)


def _read_call(name: str, body: str) -> ToolCall:
    arguments, rest = read_json(body.strip())
    if rest.strip():
        raise NotACall("text after the arguments")
    return call_of({"name": name, "arguments": arguments})

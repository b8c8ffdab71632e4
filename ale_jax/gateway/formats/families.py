"""Which format a model has, by its name or by its chat template."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ale_jax.gateway.formats.harmony import Harmony
from ale_jax.gateway.formats.json_calls import Hermes, Llama3, Mistral, PlainJson
from ale_jax.gateway.formats.qwen3_coder import Qwen3Coder
from ale_jax.gateway.formats.reply import ReplyFormat

FORMATS: dict[str, Callable[[], ReplyFormat]] = {
    "hermes": Hermes,
    "qwen3_coder": Qwen3Coder,
    "llama3": Llama3,
    "mistral": Mistral,
    "harmony": Harmony,
    "plain_json": PlainJson,
}


def format_named(name: str) -> ReplyFormat:
    """Returns the format of a name. ValueError if there is no such format."""
    if name not in FORMATS:
        raise ValueError(f"tool format {name!r} is unknown: choose one of {', '.join(FORMATS)}")
    return FORMATS[name]()


def format_of(chat_template: str, added_tokens: Collection[str]) -> str:
    """Returns the name of the format that a chat template teaches, or that the tokenizer has tokens
    for."""
    if "<|channel|>" in added_tokens:
        return "harmony"
    if "<function=" in chat_template:
        return "qwen3_coder"
    if "<tool_call>" in chat_template or "<tool_call>" in added_tokens:
        return "hermes"
    if "[TOOL_CALLS]" in chat_template:
        return "mistral"
    if '"parameters": ' in chat_template and "ipython" in chat_template:
        return "llama3"
    return "plain_json"

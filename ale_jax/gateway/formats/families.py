"""Which format a model has, by its name, or by its chat template and the tokens for it."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ale_jax.gateway.formats.deepseek import DeepSeek, DeepSeekV3
from ale_jax.gateway.formats.dsml import Dsml
from ale_jax.gateway.formats.gemma4 import Gemma4
from ale_jax.gateway.formats.glm import Glm
from ale_jax.gateway.formats.harmony import Harmony
from ale_jax.gateway.formats.json_calls import Hermes, Llama3, PlainJson
from ale_jax.gateway.formats.kimi import Kimi
from ale_jax.gateway.formats.mistral import Mistral, MistralNamed, MistralV11
from ale_jax.gateway.formats.qwen3_coder import Qwen3Coder
from ale_jax.gateway.formats.reply import ReplyFormat

FORMATS: dict[str, Callable[[], ReplyFormat]] = {
    "hermes": Hermes,
    "qwen3_coder": Qwen3Coder,
    "llama3": Llama3,
    "mistral": Mistral,
    "mistral_v11": MistralV11,
    "mistral_v13": MistralNamed,
    "harmony": Harmony,
    "glm": Glm,
    "kimi": Kimi,
    "deepseek_v3": DeepSeekV3,
    "deepseek_v31": DeepSeek,
    "deepseek_v32": Dsml,
    "gemma4": Gemma4,
    "plain_json": PlainJson,
}
# What only the templates of a format have; the first that is found counts.
BY_TEMPLATE = (
    ("｜DSML｜", "deepseek_v32"),
    ("<function=", "qwen3_coder"),
    ("<arg_key>", "glm"),
    ("<tool_call>", "hermes"),
    ("[CALL_ID]", "mistral_v11"),
    ("[ARGS]", "mistral_v13"),
    ("[TOOL_CALLS]", "mistral"),
)
DEEPSEEK_CALLS = "<｜tool▁calls▁begin｜>"
# Tokens that one family has. Its template may not show how calls are written.
BY_TOKEN = (
    ("<|channel|>", "harmony"),
    ("｜DSML｜", "deepseek_v32"),
    ("<|tool_calls_section_begin|>", "kimi"),
    ("<|tool_call>", "gemma4"),
)


def format_named(name: str) -> ReplyFormat:
    """Returns the format of a name. ValueError if there is no such format."""
    if name not in FORMATS:
        raise ValueError(f"tool format {name!r} is unknown: choose one of {', '.join(FORMATS)}")
    return FORMATS[name]()


def format_of(chat_template: str, added_tokens: Collection[str]) -> str:
    """Returns the name of the format that a chat template teaches, or that the tokenizer has tokens
    for."""
    for token, name in BY_TOKEN:
        if token in added_tokens:
            return name
    if DEEPSEEK_CALLS in chat_template:
        # V3 and R1 fence the arguments.
        return "deepseek_v3" if "```" in chat_template else "deepseek_v31"
    for piece, name in BY_TEMPLATE:
        if piece in chat_template:
            return name
    if "<tool_call>" in added_tokens:
        return "hermes"
    if '"parameters": ' in chat_template and "ipython" in chat_template:
        return "llama3"
    return "plain_json"

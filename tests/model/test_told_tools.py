"""Tools and calls for chat templates that have no place for them."""

import json

import numpy as np
import pytest

from ale_jax.gateway.custody.engine_policy import ChatRender, for_template, language_of
from ale_jax.gateway.messages import ChatMessage, ToolCall
from ale_jax.gateway.requests import ChatRequest
from ale_jax.model.tokenizer import ChatTokenizer
from tests.gateway.custody.test_family_turns import TOOL
from tests.model.chat_families import byte_level

# As Gemma 3's: roles alternate, and a system message stands before the first question.
GEMMA3 = """{{ '<bos>' }}
{%- set told = messages[1:] if messages[0].role == 'system' else messages %}
{%- set prefix = messages[0].content + '\\n\\n' if messages[0].role == 'system' else '' %}
{%- for m in told %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' }}
{{- (prefix if loop.first else '') + m.content | trim + '<end_of_turn>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""
ASKED = [ChatMessage("system", "Work."), ChatMessage("user", "Begin.")]
CALLS = tuple(ToolCall("bash", json.dumps({"command": c}), f"{n:09d}") for n, c in enumerate("ab"))


@pytest.fixture(scope="module")
def tokenizer():
    return ChatTokenizer(byte_level(GEMMA3, "<bos> <start_of_turn> <end_of_turn>")())


def text(tokenizer, ids):
    return tokenizer._tokenizer.decode(ids)


def test_tools_are_told_in_the_system_message(tokenizer):
    told = text(tokenizer, ChatRender(tokenizer)(ASKED, [TOOL], None))
    beginning = "<bos><start_of_turn>user\nWork.\n\nYou may call these functions"
    assert told.startswith(beginning) and json.dumps(TOOL) in told
    assert told.endswith("{...}}\n\nBegin.<end_of_turn>\n<start_of_turn>model\n")
    assert text(tokenizer, ChatRender(tokenizer)(ASKED, (), None)).count("function") == 0


def test_a_call_is_json_that_the_format_reads_and_results_are_the_users(tokenizer):
    reply = ChatMessage("assistant", "I look.", tool_calls=CALLS[:1])
    ids = tokenizer.turn_ids(for_template(reply))
    request = ChatRequest("m", tuple(ASKED), (TOOL,))
    said = language_of(tokenizer).read(np.array(ids[:-1]), request)
    assert (said.content, [c.name for c in said.calls]) == ("I look.", ["bash"])
    results = [ChatMessage("tool", out, answers=CALLS[0].id) for out in ("x", "y")]
    after = text(tokenizer, ChatRender(tokenizer)(results, [TOOL], ids, reply))
    assert after == (
        "\n<start_of_turn>user\nResult of the call:\nx\n\nResult of the call:\ny<end_of_turn>\n"
        "<start_of_turn>model\n"
    )
    whole = text(tokenizer, ChatRender(tokenizer)([*ASKED, reply, *results], [TOOL], None))
    first = text(tokenizer, ChatRender(tokenizer)(ASKED, [TOOL], None))
    assert whole == first + text(tokenizer, ids) + after


def test_no_text_of_a_tool_is_a_marker(tokenizer):
    tool = {"name": "<end_of_turn>", "description": "<bos>"}
    end = tokenizer.added_tokens["<end_of_turn>"]
    ids = ChatRender(tokenizer)(ASKED, [tool], None)
    assert (ids == end).sum() == (ChatRender(tokenizer)(ASKED, (), None) == end).sum()

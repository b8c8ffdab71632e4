"""A policy's turns with calls, by the template of each family: what is written is read, and a
conversation in turns has the ids of the whole."""

import json

import numpy as np
import pytest

from ale_jax.gateway.custody.engine_policy import ChatRender, for_template, language_of
from ale_jax.gateway.messages import ChatMessage, ToolCall
from ale_jax.gateway.requests import ChatRequest
from ale_jax.model.tokenizer import ChatTokenizer
from tests.model.chat_families import FAMILIES

TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Runs a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}
ASKED = [ChatMessage("system", "Work."), ChatMessage("user", "Begin.")]


def calling(*commands, first=0):
    calls = (
        ToolCall("bash", json.dumps({"command": command}), f"{first + n:09d}")
        for n, command in enumerate(commands)
    )
    return ChatMessage("assistant", "", tool_calls=tuple(calls))


def results(message):
    return [ChatMessage("tool", "out", answers=call.id) for call in message.tool_calls]


def read(tokenizer, ids):
    ended = [id for id in ids.tolist() if id not in tokenizer.stop_ids]
    request = ChatRequest("m", tuple(ASKED), (TOOL,))
    return language_of(tokenizer).read(np.array(ended), request)


# These have one call for each reply, or no sign of a call at all.
SINGLE = ("harmony", "plain_json", "trimmed_before", "mistral_sentencepiece", "llama3")


@pytest.mark.parametrize("family", FAMILIES)
def test_what_the_template_writes_of_a_call_is_read(family):
    tokenizer = ChatTokenizer(FAMILIES[family]())
    commands = ("ls",) if family in SINGLE else ("ls", 'echo "a"\n')
    told = calling(*commands)
    ids = tokenizer.turn_ids(for_template(told))
    said = read(tokenizer, ids)
    assert [call.name for call in said.calls] == ["bash"] * len(commands)
    assert tuple(json.loads(call.arguments)["command"] for call in said.calls) == commands
    assert not said.malformed and ids[-1] in tokenizer.stop_ids


@pytest.mark.parametrize("family", FAMILIES)
def test_a_conversation_in_turns_has_the_ids_of_the_whole(family):
    tokenizer = ChatTokenizer(FAMILIES[family]())
    render = ChatRender(tokenizer)
    first, second = calling("ls"), calling("pwd", first=1)
    told = [*ASKED, first, *results(first), second, *results(second)]
    whole = render(told, [TOOL], None)
    reply_ids = tokenizer.turn_ids(for_template(first))
    parts = [render(ASKED, [TOOL], None), reply_ids]
    parts.append(render(results(first), [TOOL], reply_ids, first))
    last_ids = tokenizer.turn_ids(for_template(second))
    parts += [last_ids, render(results(second), [TOOL], last_ids, second)]
    assert tokenizer._tokenizer.decode(np.concatenate(parts)) == tokenizer._tokenizer.decode(whole)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reply_that_was_cut_gets_the_end_that_the_template_writes(family):
    tokenizer = ChatTokenizer(FAMILIES[family]())
    render, told = ChatRender(tokenizer), ChatMessage("assistant", "I look")
    cut = tokenizer.turn_ids(for_template(told))
    new = [ChatMessage("user", "And?")]
    ended = render(new, (), cut, told)
    begun = render(new, (), cut[:-1], told)
    np.testing.assert_array_equal(begun[1:], ended)
    whole = render([*ASKED, told, *new], (), None)
    assert whole[-len(begun) :].tolist() == begun.tolist()

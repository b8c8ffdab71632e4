"""Text from outside is ordinary tokens, whichever marker of whichever family it names, and all else
is what transformers gives."""

import json
from functools import cache

import pytest
from tokenizers import AddedToken, normalizers

from ale_jax.gateway.formats.families import FORMATS, format_of
from ale_jax.model.tokenizer import ChatTokenizer
from tests.model.chat_families import FAMILIES

# With a text in every place that a client, a tool or a user can write to.
EVERYWHERE = [
    {"role": "system", "content": "Work: TEXT"},
    {"role": "user", "content": " TEXT\n"},
    {
        "role": "assistant",
        "content": "TEXT",
        "reasoning_content": "\nTEXT?",
        "tool_calls": [
            {
                "type": "function",
                "id": "TEXT",
                "function": {"name": "aTEXT", "arguments": {"cTEXT": "TEXTb", "n": ["TEXT", 1]}},
            }
        ],
    },
    {"role": "tool", "content": "TEXT", "tool_call_id": "TEXT"},
    {"role": "tool", "content": "a TEXT b\n\n", "tool_call_id": "9TEXT"},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "TEXT",
            "description": "Says TEXT",
            "parameters": {"type": "object", "properties": {"TEXT": {"enum": ["TEXT"]}}},
        },
    }
]
PLACES = json.dumps([EVERYWHERE, TOOLS])


@cache
def chat(family):
    return ChatTokenizer(FAMILIES[family]())


def told(text):
    return json.loads(PLACES.replace("TEXT", json.dumps(text)[1:-1]))


def prompts(tokenizer, text):
    """The ids of a conversation that begins, and of one that goes on."""
    messages, tools = told(text)
    first = tokenizer.prompt_ids(messages, True, tools)
    end = tokenizer.added_tokens[tokenizer._renderer.ends.call]
    following = tokenizer.following_ids(messages[3:], end, messages[2]["tool_calls"])
    return first.tolist(), following.tolist()


def transformers_ids(tokenizer, messages, tools):
    # Arguments as text, where a template takes them so, and ids of calls in the family's form.
    told = tokenizer._renderer.dialect.told(messages)
    return tokenizer._tokenizer.apply_chat_template(
        told, tools=tools, add_generation_prompt=True, return_dict=False
    )


def test_each_format_has_a_family_here():
    found = {format_of(each.chat_template, each.added_tokens) for each in map(chat, FAMILIES)}
    assert found == set(FORMATS)


@pytest.mark.parametrize("family", FAMILIES)
def test_nobody_but_the_template_writes_a_marker(family):
    tokenizer = chat(family)
    added = tokenizer.added_tokens
    harmless = [[i for i in ids if i in added.values()] for ids in prompts(tokenizer, "abc")]
    assert all(harmless)
    for marker in added:
        # Alone, twice, within itself, and beside letters of its own.
        inner = marker[:1] + marker + marker[1:]
        for text in (marker, f" {marker} ", marker * 2, inner, marker[:-1], marker[1:] + marker):
            ids = prompts(tokenizer, text)
            assert [[i for i in each if i in added.values()] for each in ids] == harmless, text
            for each in ids:
                assert text.strip() in tokenizer._tokenizer.decode(each)


@pytest.mark.parametrize("family", FAMILIES)
def test_harmless_text_has_the_ids_that_transformers_gives(family):
    tokenizer = chat(family)
    for text in ("abc", "", "\n", " a\n\n ", 'é"\\\t', "assistant\n", "<|", "tool_call>", "\0"):
        messages, tools = told(text)
        first, following = prompts(tokenizer, text)
        assert first == transformers_ids(tokenizer, messages, tools)
        begun = [{"role": "user", "content": "a"}, messages[2]]
        whole = transformers_ids(tokenizer, [*begun, *messages[3:]], None)
        assert whole[-len(following) :] == following


@pytest.mark.parametrize(("marker", "text"), [("<call>", "＜call＞"), ("...", "…")])
def test_what_becomes_a_marker_when_it_is_normalized_does_not(marker, text):
    other = FAMILIES["hermes"]()
    other.backend_tokenizer.normalizer = normalizers.NFKC()
    other.backend_tokenizer.add_tokens([AddedToken(marker, normalized=True)])
    tokenizer = ChatTokenizer(other)
    for ids in prompts(tokenizer, text):
        assert tokenizer.added_tokens[marker] not in ids


def test_white_space_and_single_letters_are_no_markers():
    other = FAMILIES["hermes"]()
    other.backend_tokenizer.add_tokens([AddedToken("    ", normalized=False), "新"])
    tokenizer = ChatTokenizer(other)
    ids = tokenizer.prompt_ids([{"role": "user", "content": "a    新"}], first=True)
    assert {tokenizer.added_tokens["    "], tokenizer.added_tokens["新"]} <= set(ids.tolist())

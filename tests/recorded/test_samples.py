"""Recorded conversations as ids: those that the gateway has when the policy says the same."""

import dataclasses
import json

import numpy as np
import pytest

from ale_jax.config.learn import Shape
from ale_jax.gateway.api.openai_chat import ChatBody, chat_request
from ale_jax.gateway.custody.engine_policy import ChatRender, language_of
from ale_jax.gateway.custody.token_tree import TokenTree
from ale_jax.gateway.episode import GatewayEpisode
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.recorded.formats import conversation_of
from ale_jax.recorded.samples import Dropped, exchanges_of, sample_of
from ale_jax.system.agent_demonstrations import Script
from tests.model.chat_families import (
    CHATML,
    CHATML_SPECIAL,
    FAMILIES,
    QWEN_OTHERS,
    byte_level,
)
from tests.recorded.made import NUM_REPLIES, TOOLS, USER, WITH_TOOLS, call, ours, result, said

WIDE = Shape(microbatch_rows=1, pack_length=4096, chunks_per_pack=8)


@pytest.fixture(scope="module")
def tokenizer():
    return ours()


def through_the_gateway(record, tokenizer):
    """The ids of a conversation in which the policy gives the recorded replies, and what the agent
    is told that it said."""
    conversation = conversation_of(record)
    scripted = [reply_ids for _, reply_ids in exchanges_of(conversation, tokenizer)]
    episode = GatewayEpisode(
        TokenTree(ChatRender(tokenizer)),
        Script(scripted),
        language_of(tokenizer),
        lambda number: np.zeros(2, np.uint32),
    )
    heard, told = [], []
    for message in record["messages"]:
        if message["role"] != "assistant":
            told.append(message)
            continue
        body = {"messages": told, "tools": record.get("tools", [])}
        request = chat_request(ChatBody.model_validate(body))
        (pending,) = episode.ask(request)
        reply = episode.answer(pending, request).message
        heard.append(reply)
        told.append(message)
    (branch,) = episode.end("all")
    return branch.calls, heard


def test_the_ids_are_those_of_the_gateway(tokenizer):
    calls, _ = through_the_gateway(WITH_TOOLS, tokenizer)
    exchanges = exchanges_of(conversation_of(WITH_TOOLS), tokenizer)
    assert len(calls) == NUM_REPLIES
    for each, (prompt_ids, reply_ids) in zip(calls, exchanges, strict=True):
        np.testing.assert_array_equal(each.prompt_ids, prompt_ids)
        np.testing.assert_array_equal(each.answer.ids, reply_ids)


def test_the_gateway_reads_a_reply_as_it_was_recorded(tokenizer):
    _, heard = through_the_gateway(WITH_TOOLS, tokenizer)
    recorded = [m for m in conversation_of(WITH_TOOLS).messages if m.role == "assistant"]
    for reply, message in zip(heard, recorded, strict=True):
        assert reply.content == message.content
        assert list(map(named, reply.tool_calls)) == list(map(named, message.tool_calls))


def named(call):
    return call.name, json.loads(call.arguments)


ID = "000000000"  # as short as Mistral's template wants it; others are numbered anew
SHORT = {
    "messages": [
        USER,
        said("", call("bash", ID, command="cat a.tx")),
        result(ID, "no such file"),
        {"role": "assistant", "content": "It is 7."},
    ],
    "tools": TOOLS,
}


@pytest.mark.parametrize("family", ["hermes", "qwen3_coder", "llama3", "mistral", "harmony"])
def test_other_families_write_a_reply_as_they_would_have_sampled_it(family):
    tokenizer = ChatTokenizer(FAMILIES[family]())
    calls, heard = through_the_gateway(SHORT, tokenizer)
    (made,) = heard[0].tool_calls
    assert (made.name, json.loads(made.arguments)) == ("bash", {"command": "cat a.tx"})
    assert heard[1].content == "It is 7."
    for each, exchange in zip(calls, exchanges_of(conversation_of(SHORT), tokenizer), strict=True):
        np.testing.assert_array_equal(each.prompt_ids, exchange[0])
        assert exchange[1][-1] in tokenizer.stop_ids


@pytest.mark.parametrize("family", ["llama3", "mistral"])
def test_a_reply_of_which_the_template_leaves_out_a_part_is_dropped(family):
    with pytest.raises(Dropped, match="drops or repeats"):
        exchanges_of(conversation_of(WITH_TOOLS), ChatTokenizer(FAMILIES[family]()))


def test_a_reply_that_the_template_does_not_begin_as_its_prompt_is_dropped():
    opened = CHATML.replace("'<|im_start|>assistant\\n'", "'<|im_start|>assistant\\n<think>\\n'")
    thinking = ChatTokenizer(byte_level(opened, CHATML_SPECIAL, QWEN_OTHERS)())
    with pytest.raises(Dropped, match="in another form than its prompt"):
        exchanges_of(conversation_of(SHORT), thinking)


def test_a_reply_with_thoughts():
    told = [USER, {"role": "assistant", "content": "7", "reasoning_content": "I count."}]
    record = {"messages": told}
    _, (reply,) = through_the_gateway(record, ChatTokenizer(FAMILIES["hermes"]()))
    assert (reply.content, reply.reasoning) == ("7", "I count.")
    with pytest.raises(Dropped, match="drops or repeats"):  # rather than taught without thinking
        exchanges_of(conversation_of(record), ours())


def test_texts_of_a_policy_are_its_tokens(tokenizer):
    """An episode of our own loop has calls as the text that they are."""
    (marker,) = tokenizer.text_ids("<tool_call>")
    text = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    told = {"messages": [USER, {"role": "assistant", "content": text}]}
    spoken = dataclasses.replace(conversation_of(told), as_written=True)
    ((_, written),) = exchanges_of(spoken, tokenizer)
    record = {"messages": [USER, said("", {"function": {"name": "look", "arguments": "{}"}})]}
    ((_, rendered),) = exchanges_of(conversation_of(record), tokenizer)
    assert written[0] == marker
    np.testing.assert_array_equal(written, rendered)


def learned(sample):
    """Of each token, whether it is trained on, with all ids."""
    parts = [((t.prompt_ids, False), (t.action_ids, True)) for t in sample.turns]
    pairs = [pair for part in parts for pair in part]
    return np.concatenate([i for i, _ in pairs]), np.concatenate([[m] * len(i) for i, m in pairs])


# Made by hand: of the four replies, the first failed, and the third repeats the second.
MASKS = {
    (False, False): (True, True, True, True),
    (True, False): (False, True, True, True),
    (False, True): (True, True, False, True),
    (True, True): (False, True, False, True),
}


@pytest.mark.parametrize(("switches", "replies"), MASKS.items())
def test_the_loss_mask_is_that_made_by_hand(tokenizer, switches, replies):
    conversation = repeating()
    mask = conversation.mask(*switches)
    assert tuple(mask) == replies
    exchanges = exchanges_of(conversation, tokenizer)
    expected = []
    for (prompt_ids, reply_ids), is_learned in zip(exchanges, replies, strict=True):
        expected += [False] * len(prompt_ids) + [is_learned] * len(reply_ids)
    ids, found = learned(sample_of(conversation, mask, tokenizer, WIDE, "drop"))
    np.testing.assert_array_equal(found, expected[: len(found)])
    np.testing.assert_array_equal(
        ids, np.concatenate([i for e in exchanges for i in e])[: len(ids)]
    )
    assert not any(expected[len(found) :])


def repeating():
    """The record, in which the third reply says what the second one did."""
    conversation = conversation_of(WITH_TOOLS)
    messages = list(conversation.messages)
    messages[7] = dataclasses.replace(messages[7], content="I look.")
    return dataclasses.replace(conversation, messages=tuple(messages))


@pytest.mark.parametrize("replies", range(NUM_REPLIES + 1))
def test_a_long_conversation_is_cut_behind_the_last_reply_that_fits(tokenizer, replies):
    conversation = conversation_of(WITH_TOOLS)
    exchanges = exchanges_of(conversation, tokenizer)
    room = sum(len(ids) for exchange in exchanges[:replies] for ids in exchange)
    shape = Shape(microbatch_rows=1, pack_length=max(room, 1), chunks_per_pack=8)
    mask = np.ones(NUM_REPLIES, bool)
    if replies == 0:
        with pytest.raises(Dropped, match="too long"):
            sample_of(conversation, mask, tokenizer, shape, "cut")
        return
    sample = sample_of(conversation, mask, tokenizer, shape, "cut")
    assert (sample.num_chunks, sample.num_tokens) == (replies, room)
    if replies < NUM_REPLIES:
        with pytest.raises(Dropped, match="too long"):
            sample_of(conversation, mask, tokenizer, shape, "drop")


def test_a_row_has_no_more_replies_than_chunks(tokenizer):
    shape = dataclasses.replace(WIDE, chunks_per_pack=2)
    conversation, mask = conversation_of(WITH_TOOLS), np.ones(NUM_REPLIES, bool)
    assert sample_of(conversation, mask, tokenizer, shape, "cut").num_chunks == 2
    with pytest.raises(Dropped, match="too long"):
        sample_of(conversation, mask, tokenizer, shape, "drop")


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ([USER], "no reply to learn"),
        ([said("hello"), USER, said("bye")], "a reply without a message before it"),
        ([USER, said("a"), said("b")], "a reply without a message before it"),
        ([USER, said("a", weight=0)], "no reply to learn"),
    ],
)
def test_what_has_nothing_to_learn_is_dropped(tokenizer, told, reason):
    conversation = conversation_of({"messages": told})
    with pytest.raises(Dropped, match=reason):
        sample_of(conversation, conversation.mask(False, False), tokenizer, WIDE, "cut")


def test_long_ids_of_calls_become_as_short_as_a_template_wants_them():
    """Mistral's refuses others, and shows that of a result."""
    tokenizer = ChatTokenizer(FAMILIES["mistral"]())
    told = json.loads(json.dumps(SHORT).replace(ID, "call_of_another_model"))
    for one, other in zip(*(exchanges_of(conversation_of(r), tokenizer) for r in (SHORT, told))):
        np.testing.assert_array_equal(one[0], other[0])

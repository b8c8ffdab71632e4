"""What is said of a reply before it is complete."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ale_jax.gateway.formats.families import FORMATS, format_named
from ale_jax.gateway.language import Language
from ale_jax.gateway.messages import ChatMessage
from ale_jax.gateway.requests import AUTO, NONE, REQUIRED, ApiError, ChatRequest, SampleOptions
from tests.gateway.formats.test_formats import PIECES, marked

TOOLS = ({"function": {"name": "bash", "parameters": {}}},)
STOPS = ("STOP", "END")
MORE_PIECES = (
    *(" ", "STOP", "EN", "D", "words ", "analysis", " to=functions.x", "«<|end|>»"),
    "«<|channel|>»analysis«<|message|>»so«<|end|>»",
    "«<|channel|>»commentary to=functions.bash«<|message|>»{}«<|call|>»",
)


def language(name, text):
    """Its ids are the places of letters in the text."""
    return Language(format_named(name), lambda ids: "".join(text[i] for i in ids))


def request(tools=TOOLS, **options):
    messages = (ChatMessage("user", "task"),)
    return ChatRequest("m", messages, tools, options=SampleOptions(stop=STOPS), **options)


ASKED = (
    request(tool_choice=AUTO),
    request(tool_choice=NONE),
    request(tools=(), tool_choice=NONE),
    request(allowed=()),
)
# Where these are no calls, the thoughts before them turn out to be content as well.
THOUGHTS_AND_CALL = "".join(MORE_PIECES[-2:])


@pytest.mark.heavy
@pytest.mark.parametrize("name", FORMATS)
@settings(deadline=None, max_examples=300)
@given(
    asked=st.sampled_from(ASKED),
    text=st.lists(st.sampled_from((*PIECES, *MORE_PIECES))).map("".join),
)
@example(ASKED[1], THOUGHTS_AND_CALL)
@example(ASKED[3], THOUGHTS_AND_CALL)
def test_what_is_sent_early_is_what_the_whole_reply_begins_with(name, asked, text):
    text = marked(text)
    model, ids = language(name, text), np.arange(len(text))
    end = model.end_of(ids, STOPS)
    whole = model.read(ids if end is None else ids[:end], asked)
    for length in range(1, len(ids) + 1):  # the engine may write more before it sees the end
        sure = model.preview(ids[:length], asked)
        assert whole.content.startswith(sure.content)
        is_all = whole.reasoning == sure.thoughts
        assert is_all if sure.content else whole.reasoning.startswith(sure.thoughts)


@pytest.mark.parametrize(
    ("name", "text", "thoughts", "content"),
    [
        ("hermes", " <think>\nI look", "I look", ""),
        ("hermes", "<think>I look.\n</thi", "I look.", ""),
        ("hermes", "«<think>»so«</think>»\nYes. «<tool_c", "so", "Yes."),
        ("qwen3_coder", "<think>so</think>Yes.<tool_call>", "so", "Yes."),
        ("harmony", "«<|channel|>»analysis«<|message|>»I lo", "I lo", ""),
        (
            "harmony",
            "«<|channel|>»analysis«<|message|>»one«<|end|>»«<|channel|>»final«<|message|>»Yes"
            "«<|end|>»«<|start|>»assistant«<|channel|>»analysis«<|message|>»two",
            "one\ntwo",
            "",
        ),
        ("harmony", "«<|channel|>»analysis to=functions.x«<|message|>»{", "", ""),
        ("llama3", "Yes. ", "", "Yes."),
    ],
)
def test_thoughts_are_sent_before_they_end(name, text, thoughts, content):
    text = marked(text)
    sure = language(name, text).preview(np.arange(len(text)), request())
    assert (sure.thoughts, sure.content) == (thoughts, content)


def test_a_reply_ends_before_the_first_stop():
    text = "one END two STOP"
    model, ids = language("hermes", text), np.arange(len(text))
    end = model.end_of(ids, STOPS)
    assert text[:end] == "one END"
    assert model.read(ids[:end], request()).content == "one"
    assert model.end_of(ids[: end - 1], STOPS) is None
    assert model.end_of(ids, ()) is None


LETTERS = st.sampled_from("ab é€😀\n")


@settings(deadline=None, max_examples=300)
@given(text=st.text(LETTERS, max_size=40), stops=st.lists(st.text(LETTERS, min_size=1, max_size=4)))
def test_the_end_is_the_first_of_all_though_a_letter_may_have_several_tokens(text, stops):
    decode = lambda ids: bytes(ids.tolist()).decode(errors="replace")  # noqa: E731
    ids = np.frombuffer(text.encode(), np.uint8)
    ends = [n for n in range(1, len(ids) + 1) if any(stop in decode(ids[:n]) for stop in stops)]
    model = Language(format_named("hermes"), decode)
    assert model.end_of(ids, stops) == min(ends, default=None)


def test_where_a_long_reply_ends_is_found_in_a_few_looks():
    text, looks = "x" * 1000 + "END", []

    def decode(ids):
        looks.append(len(ids))
        return text[: len(ids)]

    assert Language(format_named("hermes"), decode).end_of(np.arange(1003), ("END",)) == 1003
    assert len(looks) <= 12


CALL = '<tool_call>{"name": "bash", "arguments": {}}</tool_call>'


def test_what_a_request_says_of_calls_is_kept():
    model = language("hermes", CALL * 2)
    ids = np.arange(len(CALL) * 2)
    assert len(model.read(ids, request()).calls) == 2
    assert len(model.read(ids, request(parallel_calls=False)).calls) == 1
    assert model.read(ids, request(tool_choice=NONE)).content == CALL * 2


@pytest.mark.parametrize(
    ("name", "thoughts"),
    [
        ("hermes", "<think>I think</think>"),
        ("qwen3_coder", "<think>I think</think>"),
        ("harmony", marked("«<|channel|>»analysis«<|message|>»I think«<|end|>»")),
    ],
)
@pytest.mark.parametrize("choice", [AUTO, NONE])
def test_thoughts_are_no_content_whether_or_not_there_are_tools_to_choose(name, thoughts, choice):
    text = thoughts + "Hello there"
    said = language(name, text).read(np.arange(len(text)), request(tool_choice=choice))
    assert (said.reasoning, said.content) == ("I think", "Hello there")


def test_a_client_that_reads_the_text_itself_gets_thoughts_and_calls_in_it():
    text = f"<think>I think</think>Hello {CALL}"
    model, ids = language("hermes", text), np.arange(len(text))
    asked = request(tools=(), tool_choice=NONE)
    assert model.read(ids, asked).content == model.preview(ids, asked).content == text


@pytest.mark.parametrize("choice", [REQUIRED, "look", AUTO])
def test_a_request_whose_schema_refers_to_nothing_is_refused(choice):
    schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/X"}}}
    tools = ({"function": {"name": "look", "parameters": schema}},)
    asked = request(tools, tool_choice=choice, schema=schema if choice == AUTO else None)
    with pytest.raises(ApiError, match=r"a reply can be held to: .*'#/\$defs/X'") as refused:
        language("hermes", "").grammar(asked)
    assert refused.value.status == 400


def test_a_call_is_held_to_the_tools_that_are_allowed():
    tools = tuple({"function": {"name": name, "parameters": {}}} for name in ("bash", "read"))
    asked = request(tools, tool_choice=REQUIRED, allowed=("read",))
    grammar = language("hermes", "").grammar(asked)
    assert "read" in grammar and "bash" not in grammar

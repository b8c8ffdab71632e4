"""The tool-call format: what is written can be read back, and nothing else gets through."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ale_jax.agent.tools import (
    MAX_REPLY_CHARS,
    ToolCall,
    ToolCallError,
    bash,
    finish,
    parse_tool_call,
    render_tool_call,
)
from tests.rows import each_row

ARGUMENT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
CALLS = st.builds(bash, ARGUMENT) | st.builds(finish, ARGUMENT)


def wrapped(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


LS = '{"name": "bash", "arguments": {"command": "ls"}}'


def test_rendering_is_what_qwen3_writes():
    expected = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
    assert render_tool_call(bash("ls")) == expected


def test_rendering_keeps_letters_beyond_ascii_readable():
    assert '"grep é"' in render_tool_call(bash("grep é"))


@given(CALLS)
def test_every_call_reads_back(call):
    assert parse_tool_call(render_tool_call(call)) == call


@given(CALLS, st.text().filter(lambda text: "<tool_call>" not in text))
def test_thoughts_may_stand_before_the_call(call, thoughts):
    assert parse_tool_call(f"{thoughts}<tool_call>{render_tool_call(call)[11:]}") == call


def test_tags_inside_an_argument_are_text():
    call = bash("echo '</tool_call><tool_call>'")
    assert parse_tool_call(render_tool_call(call)) == call


def test_an_empty_answer_is_an_answer():
    text = wrapped('{"name": "finish", "arguments": {"answer": ""}}')
    assert parse_tool_call(text) == ToolCall("finish", {"answer": ""})


HOSTILE = {
    "nothing": ("", "no <tool_call>"),
    "prose": ("I would list the files.", "no <tool_call>"),
    "bare JSON": (LS, "no <tool_call>"),
    "not closed": (f"<tool_call>\n{LS}", "expected </tool_call>"),
    "words after the JSON": (wrapped(LS + " please"), "expected </tool_call>"),
    "words after the call": (wrapped(LS) + " done", "text after"),
    "two calls": (wrapped(LS) + "\n" + wrapped(LS), "more than one"),
    "cut JSON": (wrapped('{"name": "bash", "argum'), "malformed JSON"),
    "single quotes": (wrapped("{'name': 'bash'}"), "malformed JSON"),
    "a raw newline": (wrapped(LS.replace("ls", "ls\nls")), "malformed JSON"),
    "endless nesting": (wrapped("[" * 10_000), "malformed JSON"),
    "endless number": (wrapped("9" * 10_000), "malformed JSON"),
    "a list": (wrapped(f"[{LS}]"), "expected {"),
    "a number": (wrapped("1"), "expected {"),
    "no arguments": (wrapped('{"name": "bash"}'), "expected {"),
    "an extra field": (wrapped(LS[:-1] + ', "id": 1}'), "expected {"),
    "unknown tool": (wrapped(LS.replace("bash", "python")), "unknown tool"),
    "unhashable tool": (wrapped(LS.replace('"bash"', "[]")), "unknown tool"),
    "arguments as text": (wrapped('{"name": "bash", "arguments": "ls"}'), "takes exactly"),
    "missing argument": (wrapped('{"name": "bash", "arguments": {}}'), "takes exactly"),
    "other tool's argument": (wrapped(LS.replace("command", "answer")), "takes exactly"),
    "extra argument": (wrapped(LS.replace('"ls"', '"ls", "cwd": "/"')), "takes exactly"),
    "argument of a wrong type": (wrapped(LS.replace('"ls"', "null")), "must be a string"),
    "key twice": (wrapped(LS.replace('"ls"', '"ls", "command": "rm"')), "given twice"),
    "NUL": (wrapped(LS.replace("ls", "l\\u0000s")), "no shell can take"),
    "lone surrogate": (wrapped(LS.replace("ls", "l\\ud800s")), "no shell can take"),
    "too long": (wrapped(LS.replace("ls", "l" * MAX_REPLY_CHARS)), "longer than"),
}


@each_row("name", HOSTILE)
def test_hostile_replies_are_refused_with_a_short_reason(name):
    text, reason = HOSTILE[name]
    with pytest.raises(ToolCallError) as refusal:
        parse_tool_call(text)
    assert reason in str(refusal.value)
    assert len(str(refusal.value)) < 60


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["name", "arguments", "command"]), inner)
    ),
)


@given(JSON)
def test_any_json_is_a_call_or_refused(value):
    try:
        call = parse_tool_call(wrapped(json.dumps(value)))
    except ToolCallError:
        return
    assert {"name": call.name, "arguments": call.arguments} == value


@given(st.data())
def test_a_damaged_call_never_crashes_the_parser(data):
    text = render_tool_call(data.draw(CALLS))
    cut = data.draw(st.integers(0, len(text)))
    try:
        parse_tool_call(text[:cut] + data.draw(st.text(max_size=3)) + text[cut + 1 :])
    except ToolCallError as refusal:
        assert str(refusal)

"""What a world reads of a reply: its calls, and the rest."""

from hypothesis import given
from hypothesis import strategies as st

from ale_jax.worlds import Call, Reply, write_reply
from ale_jax.worlds.replies import reply_text
from tests.rows import each_row

LS = Call("ls", {"all": True})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
CALLS = st.lists(st.builds(Call, st.text(), st.dictionaries(st.text(), JSON, max_size=3)))


def test_a_reply_is_its_text_and_its_parts():
    text = 'I look.\n<tool_call>\n{"name": "ls", "arguments": {"all": true}}\n</tool_call>'
    reply = Reply(text)
    assert write_reply("I look.", [LS]) == reply == text
    assert (reply.content, reply.calls, reply.malformed) == ("I look.", (LS,), 0)


@given(CALLS)
def test_what_is_written_is_read(calls):
    reply = Reply(write_reply("Well.", calls))
    assert (reply.content, list(reply.calls), reply.malformed) == ("Well.", calls, 0)


@each_row(
    "text, content, calls",
    [
        ("done", "done", ()),
        ("<think>\n<tool_call>\n</think>\n ok", "ok", ()),
        ("<think> for ever <tool_call>", "", ()),
        (write_reply("", [LS, LS]) + " bye", "bye", (LS, LS)),
    ],
)
def test_thoughts_are_no_content(text, content, calls):
    assert (Reply(text).content, Reply(text).calls) == (content, calls)


@each_row(
    "body",
    [
        "{",
        '{"name": "ls"}',
        '{"name": "ls", "arguments": []}',
        '{"name": 1, "arguments": {}}',
        '{"name": "ls", "arguments": {}, "more": 1}',
        '{"name": "ls", "arguments": {"a": 1, "a": 2}}',
        '{"name": "ls", "arguments": {}} {}',
        "[" * 100_000,
    ],
)
def test_a_call_that_cannot_be_read_is_content(body):
    broken = f"<tool_call>\n{body}\n</tool_call>"
    reply = Reply(f"{broken}\n{write_reply('', [LS])}")
    assert (reply.content, reply.calls, reply.malformed) == (broken, (LS,), 1)


def test_parts_that_an_api_tells_become_the_same_reply():
    text = reply_text("I look.", "Hm.", [("ls", '{"all": true}'), ("ls", "{all}")])
    reply = Reply(text)
    assert text.startswith("<think>\nHm.\n</think>\nI look.\n<tool_call>\n")
    assert reply.calls == (LS,) and reply.malformed == 1
    assert reply.content.startswith("I look.") and "{all}" in reply.content

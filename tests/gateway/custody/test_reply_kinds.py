"""Which replies to an agent's program were carried out, as far as its calls tell."""

import pytest

from ale_jax.gateway.custody.reply_kinds import mark_replies
from ale_jax.gateway.custody.token_tree import TokenTree
from ale_jax.gateway.messages import ChatMessage, ToolCall
from tests.gateway.speech import render, sample, say

SYSTEM, TASK, SEEN = say("system", "sys"), say("user", "task"), say("tool", "seen")
TOOLS = [{"name": "bash"}]
RUN = ToolCall("bash", '{"command": "ls"}')


@pytest.fixture
def tree():
    return TokenTree(render)


def answer(tree, messages, text, tools=(), calls=(), stop="stop"):
    """Plays a call to its end; returns what the agent got."""
    call = tree.begin(messages, tools)
    reply = ChatMessage("assistant", text, tool_calls=calls)
    tree.finish(call, reply, sample(text, 0, cut=stop != "stop"), stop)
    return reply


def kinds(tree, cut_replies=None):
    calls = tree.answered()
    mark_replies(calls, cut_replies)
    assert [call.number for call in calls] == list(range(len(calls)))
    return [(call.reply.content, str(call.kind)) for call in calls]


def test_where_tools_are_offered_a_cut_reply_without_a_call_is_no_action(tree):
    told = [TASK]
    for text, calls, stop in (
        ("I talk", (), "length"),
        ("I call", (RUN,), "length"),
        ("I end", (), "stop"),
    ):
        told += [answer(tree, told, text, TOOLS, calls, stop), SEEN]
    assert kinds(tree) == [("I talk", "cut"), ("I call", "action"), ("I end", "action")]


def test_of_text_only_what_filled_the_context_is_surely_no_action(tree):
    first = answer(tree, [TASK], "perhaps an action", stop="length")
    second = answer(tree, [TASK, first, SEEN], "went on", stop="context_full")
    answer(tree, [TASK, first, SEEN, second, SEEN], "lost", stop="context_full")
    assert [kind for _, kind in kinds(tree)] == ["action", "action", "cut"]


def test_our_own_loop_knows_which_replies_it_carried_out(tree):
    first = answer(tree, [TASK], "finish", TOOLS, stop="length")
    answer(tree, [TASK, first, SEEN], "rambles")
    assert kinds(tree, cut_replies=(1,)) == [("finish", "action"), ("rambles", "cut")]

"""Which replies to an agent's program were carried out, as far as its calls tell."""

import pytest

from ale_jax.gateway.custody.reply_kinds import cut_at, mark_replies
from ale_jax.gateway.custody.token_tree import TokenTree
from ale_jax.gateway.messages import ChatMessage, ToolCall
from ale_jax.status import Status
from tests.gateway.speech import render, sample, say
from tests.rows import each_row

SYSTEM, TASK, SEEN = say("system", "sys"), say("user", "task"), say("tool", "seen")
TOOLS = [{"name": "bash"}]
RUN = ToolCall("bash", '{"command": "ls"}')
SAME = ToolCall("bash", '{ "command":"ls" }', "another id")
OTHER = ToolCall("bash", '{"command": "ls -l"}')


@pytest.fixture
def tree():
    return TokenTree(render)


def answer(tree, messages, text, tools=(), calls=(), stop="stop"):
    """Plays a call to its end; returns what the agent got."""
    call = tree.begin(messages, tools)
    reply = ChatMessage("assistant", text, tool_calls=calls)
    tree.finish(call, reply, sample(text, 0, cut=stop != "stop"), stop)
    return reply


def together(tree, messages, *texts):
    """Replies that the agent has asked for at once."""
    calls = [tree.begin(messages) for _ in texts]
    for call, text in zip(calls, texts, strict=True):
        tree.finish(call, say("assistant", text), sample(text, 0))
    return [call.reply for call in calls]


def kinds(tree, cut_replies=None):
    calls = tree.answered()
    mark_replies(calls, cut_replies)
    assert [call.number for call in calls] == list(range(len(calls)))
    return [(call.reply.content, str(call.kind)) for call in calls]


def test_what_the_full_context_cut_before_a_call_is_no_action(tree):
    told = [TASK]
    for text, calls, stop in (
        ("I talk", (), "length"),
        ("I call", (RUN,), "length"),
        ("I ramble", (), "context_full"),
    ):
        told += [answer(tree, told, text, TOOLS, calls, stop), SEEN]
    assert [kind for _, kind in kinds(tree)] == ["action", "action", "cut"]
    assert cut_at(tree.answered()) is Status.TOKEN_LIMIT


def test_a_cut_answer_ends_an_episode_at_the_limit_of_replies(tree):
    answer(tree, [TASK], "I answer at length", TOOLS, stop="length")
    assert kinds(tree) == [("I answer at length", "action")]
    assert cut_at(tree.answered()) is Status.REPLY_LIMIT


def test_of_text_only_what_filled_the_context_is_surely_no_action(tree):
    first = answer(tree, [TASK], "perhaps an action", stop="length")
    second = answer(tree, [TASK, first, SEEN], "went on", stop="length")
    answer(tree, [TASK, first, SEEN, second, SEEN], "lost", stop="context_full")
    assert [kind for _, kind in kinds(tree)] == ["action", "action", "cut"]
    assert cut_at(tree.answered()) is Status.TOKEN_LIMIT


def test_a_cut_title_is_no_limit_of_the_episode(tree):
    answer(tree, [TASK], "work", TOOLS)
    answer(tree, [SYSTEM, TASK], "a title that is", stop="length")
    assert [kind for _, kind in kinds(tree)] == ["action", "side"]
    assert cut_at(tree.answered()) is None


def test_our_own_loop_knows_which_replies_held_no_call_and_the_engine_which_limit_cut_them(tree):
    first = answer(tree, [TASK], "malformed", stop="length")
    second = answer(tree, [TASK, first, SEEN], "finish", stop="length")
    answer(tree, [TASK, first, SEEN, second, SEEN], "rambles", stop="context_full")
    assert [kind for _, kind in kinds(tree, cut_replies=(0, 2))] == ["action", "action", "cut"]
    whole = TokenTree(render)
    answer(whole, [TASK], "a call up to the last token", stop="context_full")
    assert [kind for _, kind in kinds(whole, cut_replies=())] == ["action"]


def test_a_reply_that_the_agent_asked_for_again_is_replaced(tree):
    answer(tree, [TASK], "first try")
    second = answer(tree, [TASK], "second try")
    answer(tree, [TASK, second, SEEN], "end")
    assert [kind for _, kind in kinds(tree)] == ["replaced", "action", "action"]


def test_the_last_reply_to_a_prompt_counts_though_nothing_follows(tree):
    answer(tree, [TASK], "first try")
    answer(tree, [TASK], "second try")
    assert [kind for _, kind in kinds(tree)] == ["replaced", "action"]


def test_of_several_replies_those_that_were_not_chosen_are_replaced(tree):
    _, chosen, _ = together(tree, [TASK], "a", "b", "c")
    assert [kind for _, kind in kinds(tree)] == ["action"] * 3, "nobody knows which one it took"
    answer(tree, [TASK, chosen, SEEN], "end")
    assert kinds(tree) == [
        ("a", "replaced"),
        ("b", "action"),
        ("c", "replaced"),
        ("end", "action"),
    ]


def test_a_search_that_continues_several_replies_has_carried_out_all_of_them(tree):
    for reply in together(tree, [TASK], "a", "b"):
        answer(tree, [TASK, reply, SEEN], f"after {reply.content}")
    assert {kind for _, kind in kinds(tree)} == {"action"}


def test_a_turn_back_to_an_earlier_state_replaces_nothing(tree):
    """The first way was gone, and seen to end, before the agent took another one from there."""
    first = answer(tree, [TASK], "a")
    second = answer(tree, [TASK, first, SEEN], "b")
    answer(tree, [TASK, first, SEEN, second, SEEN], "no way on")
    answer(tree, [TASK, first, SEEN], "another way")
    answer(tree, [TASK, first, say("tool", "seen otherwise")], "a third way")
    assert {kind for _, kind in kinds(tree)} == {"action"}


@each_row(
    "reply, told, kind",
    [
        (say("assistant", "rm -rf /"), say("assistant", "ls -l"), "replaced"),
        (say("assistant", "I look:\n ls"), say("assistant", "I look: ls"), "action"),
        (say("assistant", "<think>hm</think> ls"), say("assistant", "ls"), "action"),
        (say("assistant", "ls"), say("assistant", "ls\nCalling tools: ls"), "action"),
        (say("assistant", "ls"), say("assistant", ""), "replaced"),
        (ChatMessage("assistant", "", tool_calls=(RUN,)), (SAME,), "action"),
        (ChatMessage("assistant", "", tool_calls=(RUN,)), (OTHER,), "replaced"),
        (ChatMessage("assistant", "", tool_calls=(RUN,)), say("assistant", "bash: ls"), "action"),
        (ChatMessage("assistant", "", tool_calls=(RUN,)), say("assistant", "cat: a"), "replaced"),
    ],
)
def test_what_the_agent_tells_in_place_of_a_reply_replaces_it_if_it_says_otherwise(
    reply, told, kind
):
    tree = TokenTree(render)
    told = told if isinstance(told, ChatMessage) else ChatMessage("assistant", "I", "", told)
    first = answer(tree, [TASK], reply.content, TOOLS, reply.tool_calls)
    answer(tree, [TASK, told, SEEN], "end", TOOLS)
    # What was answered as it was told is continued, and no question.
    assert first.content == reply.content
    assert [kind for _, kind in kinds(tree)] == [kind, "action"]


def test_an_agent_that_rewrites_all_its_turns_has_carried_out_all_of_them(tree):
    told = [TASK]
    for number in range(5):
        reply = answer(tree, told, f"step {number}")
        told += [say("assistant", f"Calling tools\n{reply.content}"), SEEN]
    assert {kind for _, kind in kinds(tree)} == {"action"} and tree.counts.edited == 4


def test_a_call_without_tools_that_nobody_reads_is_on_the_side(tree):
    answer(tree, [SYSTEM, TASK], "a title")
    summary = answer(tree, [TASK, say("user", "Sum up.")], "it is green")
    thought = answer(tree, [say("user", "Think.")], "hm")
    answer(tree, [say("user", "Think."), thought, say("user", "Go on.")], "in the end: 7")
    answer(tree, [say("user", f"So far: {summary.content}")], "work", TOOLS)
    answer(tree, [say("user", "My helper says: in the end: 7")], "more work", TOOLS)
    found = dict(kinds(tree))
    assert found.pop("a title") == "side"
    assert set(found.values()) == {"action"}


def test_without_any_tools_no_call_is_on_the_side(tree):
    answer(tree, [SYSTEM, TASK], "a title, or not")
    answer(tree, [TASK], "work")
    assert {kind for _, kind in kinds(tree)} == {"action"}

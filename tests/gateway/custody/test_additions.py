"""What an agent adds to a reply when it tells it again."""

import itertools

import numpy as np
import pytest

from ale_jax.gateway.custody.token_tree import TokenTree
from ale_jax.gateway.messages import ChatMessage, ToolCall
from tests.gateway.speech import read, render, sample, say

TASK, SEEN = say("user", "task"), say("tool", "seen")
RUN = ToolCall("bash", '{"command": "ls"}')


def answer(tree, messages, text, stop_text=""):
    """Plays a call to its end. stop_text: ends the reply, in the policy's ids alone."""
    call = tree.begin(messages)
    sampled = sample(text + stop_text, 0, cut=bool(stop_text))
    tree.finish(call, say("assistant", text), sampled, "stop", stop_text)
    return call


@pytest.fixture
def tree():
    return TokenTree(render)


@pytest.mark.parametrize("stop_text", ["", "</code>"])
def test_an_agent_that_adds_to_each_reply_has_one_conversation_of_the_sampled_ids(tree, stop_text):
    told, calls = [TASK], []
    for number in range(4):
        calls.append(answer(tree, told, f"step {number}", stop_text))
        told += [say("assistant", f"step {number}{stop_text}\nCalling {number}"), SEEN]
    (branch,) = tree.branches("all")
    assert (branch.calls, branch.num_shared) == (tuple(calls), 0)
    assert (tree.counts.forks, tree.counts.edited) == (0, 0)
    kept = [part for call in calls[:-1] for part in (call.prompt_ids, call.sampled.ids)]
    context = np.concatenate([*kept, calls[-1].prompt_ids])
    np.testing.assert_array_equal(calls[-1].context_ids(), context)
    expected = [("user", "task")]
    for number in range(3):
        said = [("assistant", f"step {number}{stop_text}"), ("assistant", f"Calling {number}")]
        expected += [*said, ("tool", "seen")]
    assert read(calls[-1].context_ids()) == [*expected, ("assistant", "")]


def test_the_text_that_ended_a_reply_may_come_back_with_it(tree):
    first = answer(tree, [TASK], "look", "</code>")
    second = answer(tree, [TASK, say("assistant", "look\n</code>"), SEEN], "end")
    assert second.parent is first and second.messages == (SEEN,)


def test_the_longest_of_several_replies_is_the_one_that_was_added_to(tree):
    calls = [answer(tree, [TASK], text) for text in ("I look.\nMore", "I", "I look.")]
    for told, parent in (("I look.\nDone", 2), ("I look.\nMore\nof it", 0), ("I\nsee", 1)):
        assert answer(tree, [TASK, say("assistant", told), SEEN], "end").parent is calls[parent]


def test_what_is_no_addition_is_another_message(tree):
    answer(tree, [TASK], "I look")
    call = tree.begin([TASK, SEEN])
    tree.finish(call, ChatMessage("assistant", "I", "", (RUN,)), sample("I ls", 0))
    told = [
        [TASK, say("assistant", "I looked")],
        [TASK, say("assistant", "I look at it\n")],
        [TASK, say("assistant", "So I look\nat it")],
        [TASK, ChatMessage("assistant", "I look\nthere", "", (RUN,))],
        [TASK, say("user", "I look\nthere")],
        [TASK, SEEN, ChatMessage("assistant", "I\nsee", "", (RUN,))],
        [TASK, SEEN, say("assistant", "I\nsee")],
    ]
    for messages in told:
        assert answer(tree, [*messages, SEEN], "end").parent is None
    assert tree.counts.edited == 6


def test_a_template_that_refuses_two_messages_of_the_policy_in_a_row_forks():
    def strict(messages, tools, after, reply=None, variables=()):
        roles = [*(["assistant"] if after is not None else []), *(m.role for m in messages)]
        if ("assistant", "assistant") in itertools.pairwise(roles):
            raise ValueError("roles must alternate")
        return render(messages, tools, after)

    tree = TokenTree(strict)
    answer(tree, [TASK], "look")
    told = [TASK, say("assistant", "look\nCalling"), SEEN]
    second = answer(tree, told, "end")
    assert second.parent is None and second.messages == tuple(told)
    third = answer(tree, [*told, say("assistant", "end"), SEEN], "more")
    assert third.parent is second


def test_a_reply_that_is_forgotten_is_not_added_to():
    tree = TokenTree(render, remembered=1)
    answer(tree, [TASK], "look")
    answer(tree, [SEEN], "other")
    assert answer(tree, [TASK, say("assistant", "look\nCalling"), SEEN], "end").parent is None

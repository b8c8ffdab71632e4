"""The token tree: what agents may do to a conversation, and what of it is trained on."""

import dataclasses

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from ale_jax.gateway.custody.token_tree import TokenTree
from ale_jax.gateway.messages import ChatMessage, ToolCall
from tests.gateway.speech import CLOSE, read, render, sample, say, written

SYSTEM, TASK = say("system", "sys"), say("user", "task")


def answer(tree, messages, text, tools=(), **how):
    """Plays a call to its end; returns it."""
    call = tree.begin(messages, tools)
    tree.finish(call, say("assistant", text), sample(text, 0, **how))
    return call


def with_loss(tree, choice="all"):
    """The replies that are trained on, by branch, as text."""
    return [
        [call.reply.content for call in branch.calls[branch.num_shared :]]
        for branch in tree.branches(choice)
    ]


@pytest.fixture
def tree():
    return TokenTree(render)


def test_turns_in_sequence_are_one_branch_of_the_sampled_ids(tree):
    told = [SYSTEM, TASK]
    first = answer(tree, told, "one", pairs=True)
    told += [first.reply, say("tool", "seen")]
    second = answer(tree, told, "two")
    assert second.parent is first and second.messages == (say("tool", "seen"),)
    expected = [*first.prompt_ids, *first.sampled.ids, *second.prompt_ids]
    np.testing.assert_array_equal(second.context_ids(), expected)
    assert with_loss(tree) == [["one", "two"]]
    assert dataclasses.astuple(tree.counts) == (0, 0, 0, 0, 0)


def test_a_conversation_of_many_turns_continues_its_last_reply_and_shares_all_before_a_fork(tree):
    told = [TASK]
    for number in range(4):
        last = answer(tree, told, f"reply {number}")
        told += [last.reply, say("tool", "seen")]
    assert len(last.path()) == 4
    answer(tree, [*told[:-1], say("tool", "seen otherwise")], "fork")
    answer(tree, told, "end")
    replies = [f"reply {number}" for number in range(4)]
    assert with_loss(tree) == [[*replies, "fork"], ["end"]]


def test_a_reply_that_was_cut_off_is_closed_without_loss(tree):
    first = answer(tree, [TASK], "on", cut=True)
    second = answer(tree, [TASK, first.reply, TASK], "two")
    assert first.sampled.ids[-1] != CLOSE and second.prompt_ids[0] == CLOSE
    assert read(second.context_ids()) == [
        ("user", "task"),
        ("assistant", "on"),
        ("user", "task"),
        ("assistant", ""),
    ]


def test_an_episode_is_as_old_as_the_oldest_first_token_of_its_replies(tree):
    """Though another reply was begun later and answered before, and this one ended under newer
    weights."""
    assert tree.start_version is None
    early, late = tree.begin([TASK]), tree.begin([SYSTEM, TASK])
    tree.finish(late, say("assistant", "late"), sample("late", 5))
    sampled = sample("early", 4)
    sampled.version[-1] = 9
    tree.finish(early, say("assistant", "early"), sampled)
    assert tree.start_version == 4


def test_what_a_client_does_to_a_message_by_storing_it_is_no_change(tree):
    call = tree.begin([TASK])
    reply = ChatMessage(
        "assistant", " go \n", "hm", (ToolCall("bash", '{"a": 1, "b": [2]}', "x1"),)
    )
    tree.finish(call, reply, sample("anything", 0))
    stored = ChatMessage("assistant", "go", "", (ToolCall("bash", '{"b":[2],"a":1}', "x9"),))
    assert tree.begin([TASK, stored, say("tool", "ok")]).parent is call


@pytest.mark.parametrize(
    "changed",
    [
        say("assistant", "ls -l"),
        ChatMessage("assistant", "rm -rf /", tool_calls=(ToolCall("bash", "{}"),)),
        say("user", "rm -rf /"),
    ],
)
def test_a_reply_that_the_agent_has_changed_is_context_and_the_original_keeps_its_loss(
    tree, changed
):
    answer(tree, [TASK], "rm -rf /")
    second = answer(tree, [TASK, changed, say("tool", "done")], "fine")
    assert second.parent is None
    assert (changed.role, written(changed)) in read(second.context_ids())
    assert with_loss(tree) == [["rm -rf /"], ["fine"]]
    assert tree.counts.forks == 1 and tree.counts.edited == (changed.role == "assistant")


def test_best_of_n_with_equal_messages_delivers_each_sample_once(tree):
    calls = [tree.begin([TASK]) for _ in range(3)]
    for call, text in zip(calls, ("a", "b", "b"), strict=True):
        tree.finish(call, say("assistant", text), sample(text, 0))
    chosen = answer(tree, [TASK, say("assistant", "a"), TASK], "next")
    assert chosen.parent is calls[0]
    assert with_loss(tree) == [["a", "next"], ["b"], ["b"]]


def test_one_of_several_replies_with_the_same_text_and_other_ids_is_ambiguous(tree):
    answer(tree, [TASK], "same")
    other = answer(tree, [TASK], "same", pairs=True)
    assert tree.begin([TASK, other.reply, TASK]).parent is other
    assert tree.counts.ambiguous == 1
    answer(tree, [SYSTEM, TASK], "same")
    again = answer(tree, [SYSTEM, TASK], "same")
    assert tree.begin([SYSTEM, TASK, again.reply, TASK]).parent is again
    assert tree.counts.ambiguous == 1, "their ids are the same"


def test_sub_agents_run_beside_the_conversation_that_called_them(tree):
    main = answer(tree, [SYSTEM, TASK], "help")
    children = [tree.begin([say("system", f"sub{n}"), TASK]) for n in range(2)]
    for n, child in reversed(list(enumerate(children))):
        tree.finish(child, say("assistant", f"part{n}"), sample(f"part{n}", 0))
    answer(tree, [SYSTEM, TASK, main.reply, say("tool", "part0 part1")], "whole")
    assert sorted(with_loss(tree)) == [["help", "whole"], ["part0"], ["part1"]]


def test_other_tools_are_another_conversation(tree):
    first = answer(tree, [TASK], "one", tools=[{"name": "bash"}])
    told = [TASK, first.reply, TASK]
    assert tree.begin(told, [{"name": "bash"}]).parent is first
    assert tree.begin(told, [{"name": "other"}]).parent is None


def test_a_line_that_accounts_for_each_call_does_not_begin_another_conversation(tree):
    told = [TASK]
    for number in range(3):
        header = f"x-anthropic-billing-header: cc_version=2.1; cch={number};"
        system = say("system", f"{header}\nsys")
        last = answer(tree, [system, *told], f"reply {number}")
        told += [last.reply, say("tool", "seen")]
    assert with_loss(tree) == [["reply 0", "reply 1", "reply 2"]]
    assert read(last.context_ids())[:2] == [("system", "sys"), ("user", "task")]
    only_header, begins_with_it = say("system", header), say("user", f"{header}\ntask")
    alone = tree.begin([only_header, begins_with_it])
    assert read(alone.context_ids())[0] == ("user", f"{header}\ntask"), "the user's own words"


def test_branches_can_be_chosen_and_what_is_left_out_is_counted(tree):
    first = answer(tree, [TASK], "ab")
    answer(tree, [TASK, first.reply, TASK], "a long reply")
    answer(tree, [TASK, first.reply, say("user", "other")], "short")
    assert with_loss(tree) == [["ab", "a long reply"], ["short"]]
    assert tree.counts.left_out == 0
    assert with_loss(tree, "longest") == [["ab", "a long reply"]]
    assert tree.counts.left_out == len("short") + 1
    assert with_loss(tree, "leaf") == [["ab", "short"]]
    assert tree.counts.left_out == len("a long reply") + 1


def test_the_oldest_calls_that_nothing_continues_are_forgotten():
    tree, told = TokenTree(render, remembered=3), [TASK]
    for number in range(3):
        told += [answer(tree, told, f"reply {number}").reply, TASK]
    other = answer(tree, [say("user", "other")], "x")
    assert tree.begin([*other.messages, other.reply, TASK]).parent is other
    found = [tree.begin(told[:length]).parent for length in (3, 5, 7)]
    assert [call.reply.content for call in found] == ["reply 0", "reply 1", "reply 1"]
    for number in range(3):
        answer(tree, [say("user", f"more {number}")], "x")
    assert tree.begin(told).parent is None
    assert len(tree.branches("all")) == 3


@pytest.mark.parametrize("messages", [[], [TASK, say("assistant", "I said")]])
def test_there_must_be_something_to_answer(tree, messages):
    with pytest.raises(ValueError, match="last message"):
        tree.begin(messages)


TEXTS = st.sampled_from(["", "a", "ab", "abc", "{}"])
REPLIES = st.sampled_from(["a", "ab", "abc", "stop"])
CONTEXT_ROLES = st.sampled_from(["user", "tool"])


class Agents(RuleBasedStateMachine):
    """Agents that do to their conversations whatever agents do.

    A conversation is (messages, tools) as its agent tells it.
    """

    conversations, begun, answered = Bundle("conversations"), Bundle("begun"), Bundle("answered")

    def __init__(self):
        super().__init__()
        self.tree = TokenTree(render)
        self.told = {}  # id of a call -> the messages that the agent told
        self.finished = []
        self.version = 0

    @rule(target=conversations, text=TEXTS, tools=st.sampled_from([(), ({"name": "t"},)]))
    def start(self, text, tools):
        """A new task, a sub-agent, a hand-over, or a summary of what was said."""
        return ((say("system", "s"), say("user", text)), tools)

    @rule(target=begun, conversation=conversations)
    def ask(self, conversation):
        """Also again, in parallel, or after others were answered. What the policy wrote keeps its
        ids: the call continues the longest conversation that the agent repeats to its end."""
        messages, tools = conversation
        call = self.tree.begin(messages, tools)
        self.told[id(call)] = conversation
        repeated = (self._answered(each) for each in self.finished if self._tools(each) == tools)
        asked = [(each.role, written(each)) for each in messages]
        known = [len(parts) for parts in repeated if parts == asked[: len(parts)]]
        assert len(messages) - len(call.messages) == max(known, default=0)
        return call

    def _answered(self, call):
        messages, _ = self.told[id(call)]
        return [(each.role, written(each)) for each in (*messages, call.reply)]

    def _tools(self, call):
        return self.told[id(call)][1]

    @rule(target=begun, conversation=conversations, n=st.integers(2, 3))
    def ask_for_several(self, conversation, n):
        return multiple(*(self.ask(conversation) for _ in range(n)))

    @rule()
    def publish(self):
        self.version += 1

    @rule(target=answered, call=begun, text=REPLIES, pairs=st.booleans(), cut=st.booleans())
    def reply(self, call, text, pairs, cut):
        if call.sampled is None:
            sampled = sample(text, self.version, pairs, cut)
            self.tree.finish(call, say("assistant", text), sampled)
            self.finished.append(call)
        return call

    @rule(target=conversations, conversation=conversations, n=st.integers(1, 4), text=REPLIES)
    def play_on(self, conversation, n, text):
        """Some turns, one after the other."""
        for _ in range(n):
            call = self.reply(self.ask(conversation), text, pairs=n % 2 == 0, cut=False)
            conversation = self.go_on(call, "tool", text, trimmed=False)
        return conversation

    @rule(call=answered)
    def lose(self, call):
        self.tree.lose(call)

    @rule(
        target=conversations, call=answered, role=CONTEXT_ROLES, text=TEXTS, trimmed=st.booleans()
    )
    def go_on(self, call, role, text, trimmed):
        messages, tools = self.told[id(call)]
        reply = say("assistant", f" {call.reply.content}\n") if trimmed else call.reply
        return ((*messages, reply, say(role, text)), tools)

    @rule(target=conversations, call=answered, other=REPLIES, text=TEXTS)
    def edit(self, call, other, text):
        """Perhaps to what it was."""
        messages, tools = self.told[id(call)]
        return ((*messages, say("assistant", other), say("user", text)), tools)

    @rule(target=conversations, conversation=conversations, data=st.data())
    def splice(self, conversation, data):
        """Leaves out messages in the middle."""
        messages, tools = conversation
        first = data.draw(st.integers(1, len(messages) - 1))
        last = data.draw(st.integers(first, len(messages) - 1))
        return ((*messages[:first], *messages[last:]), tools)

    @rule(target=conversations, conversation=conversations, text=TEXTS)
    def import_turns(self, conversation, text):
        """Replies that nobody has sampled."""
        messages, tools = conversation
        return ((*messages, say("assistant", text), say("user", "on")), tools)

    @invariant()
    def every_call_reads_what_its_agent_told(self):
        for call in self.finished:
            messages, _ = self.told[id(call)]
            expected = [(each.role, written(each)) for each in messages]
            assert read(call.context_ids()) == [*expected, ("assistant", "")]

    @invariant()
    def every_sampled_token_has_loss_once_and_no_other(self):
        trained = []
        for branch in self.tree.branches("all"):
            assert branch.calls[-1].path() == list(branch.calls)
            trained += branch.calls[branch.num_shared :]
        assert sorted(map(id, trained)) == sorted(map(id, self.finished))
        assert self.tree.counts.left_out == 0

    @invariant()
    def nothing_is_left_out_uncounted(self):
        for choice in ("longest", "leaf"):
            branches = self.tree.branches(choice)
            kept = sum(len(call.sampled.ids) for branch in branches for call in branch.calls)
            total = sum(len(call.sampled.ids) for call in self.finished)
            assert kept + self.tree.counts.left_out == total


TestAgents = Agents.TestCase
TestAgents.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)

"""A reply that never reached the agent, and was asked for again, does not spoil its episode."""

import contextlib

import httpx
import pytest

from ale_jax.gateway.custody.reply_kinds import mark_replies
from ale_jax.gateway.custody.retries import abandoned
from ale_jax.gateway.custody.token_tree import TokenTree
from ale_jax.gateway.kept_calls import COUNT_HEADER
from ale_jax.records import ReplyKind
from tests.gateway.custody.test_token_tree import TASK, answer
from tests.gateway.speech import render, sample, say
from tests.gateway.test_app import gateway_with, until
from tests.gateway.test_kept_calls import body
from tests.gateway.test_responses import TOOLS


def finish(tree, call, text, **how):
    tree.finish(call, say("assistant", text), sample(text, 0, **how))


@pytest.fixture
def tree():
    return TokenTree(render)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_retry_that_says_so_replaces_the_call_whenever_its_loss_is_noticed(tree, is_late):
    first = tree.begin([TASK])
    if not is_late:
        tree.lose(first, was_sent=True)
    second = tree.begin([TASK], is_retry=True)
    finish(tree, second, "two")
    if is_late:
        finish(tree, first, "one")
        tree.lose(first)
    assert tree.counts.lost == 0 and tree.num_lost_last == 0
    calls = tree.answered()
    mark_replies(calls, None)
    kinds = {call.reply.content: call.kind for call in calls}
    assert kinds["two"] is ReplyKind.ACTION
    assert kinds.get("one", ReplyKind.REPLACED) is ReplyKind.REPLACED


@pytest.mark.parametrize(
    ("was_sent", "is_known", "lost"), [(False, True, 0), (True, True, 1), (False, False, 1)]
)
def test_equal_messages_are_a_retry_only_after_a_loss_of_which_nothing_was_sent(
    tree, was_sent, is_known, lost
):
    """Without one they may be asked for the best of several replies, and a part may be read."""
    first = tree.begin([TASK])
    if is_known:
        tree.lose(first, was_sent)
    answer(tree, [TASK], "two")
    tree.lose(first, was_sent)
    assert tree.counts.lost == lost


def test_other_messages_are_no_retry_and_neither_is_a_call_without_an_answer(tree):
    first = tree.begin([TASK])
    tree.lose(first)
    call = tree.begin([say("user", "another task")], is_retry=True)
    finish(tree, call, "two")
    tree.begin([TASK], is_retry=True)
    assert tree.counts.lost == 1


def test_each_retry_replaces_one_call(tree):
    lost = [tree.begin([TASK]) for _ in range(3)]
    for call in lost:
        tree.lose(call)
    finish(tree, tree.begin([TASK], is_retry=True), "two")
    assert tree.counts.lost == 2 and abandoned(lost, tree.answered()) == lost[-1:]
    finish(tree, tree.begin([TASK], is_retry=True), "three")
    assert tree.counts.lost == 1 and abandoned(lost, tree.answered()) == lost[:0:-1]


def test_a_retry_may_be_lost_and_retried(tree):
    for number in range(3):
        call = tree.begin([TASK], is_retry=number > 0)
        finish(tree, call, f"reply {number}")
        if number < 2:
            tree.lose(call, was_sent=True)
    assert tree.counts.lost == 0


def test_the_agent_goes_on_from_the_retry_though_both_say_the_same(tree):
    """With other ids it would be ambiguous which of them it has read."""
    first = answer(tree, [TASK], "one", pairs=True)
    tree.lose(first)
    second = answer(tree, [TASK], "one")
    again = answer(tree, [TASK, second.reply, say("tool", "seen")], "two")
    assert again.parent is second and tree.counts.ambiguous == 0 and tree.counts.lost == 0
    main, side = tree.branches("all")
    assert main.calls == (second, again) and side.calls == (first,)


def test_what_the_agent_goes_on_from_has_reached_it(tree):
    first = answer(tree, [TASK], "one")
    tree.lose(first)
    answer(tree, [TASK], "other")
    again = answer(tree, [TASK, first.reply, say("tool", "seen")], "two")
    assert again.parent is first
    mark_replies(tree.answered(), None)
    assert first.kind is ReplyKind.ACTION


def test_a_reply_that_arrives_after_all_is_not_abandoned(tree):
    first = answer(tree, [TASK], "one")
    tree.lose(first)
    answer(tree, [TASK], "two")
    tree.find(first)
    assert tree.counts.lost == 0 and not first.abandoned


def test_lost_calls_are_forgotten_where_others_are():
    tree = TokenTree(render, remembered=3)
    for number in range(9):
        tree.lose(tree.begin([say("user", str(number))]))
    assert tree.counts.lost == 3


BODIES = {
    "/chat/completions": body("wait"),
    "/messages": body("wait") | {"max_tokens": 100},
    "/responses": {"input": "wait"},
    "/completions": {"prompt": [2, *(1000 + ord(letter) for letter in "wait"), 5, 4]},
}


@pytest.mark.heavy
@pytest.mark.parametrize("path", BODIES)
def test_a_client_that_times_out_and_says_that_it_retries_keeps_its_episode(path):
    with gateway_with() as gateway:
        token = gateway.open()
        tree = gateway.episodes.find(token).tree
        headers = {"Authorization": f"Bearer {token}", COUNT_HEADER: "0"}
        ask = {"url": gateway.url + path, "json": BODIES[path]}
        with contextlib.suppress(httpx.TimeoutException):
            httpx.post(**ask, headers=headers, timeout=0.5)
        until(lambda: tree.counts.lost == 1)
        gateway.policy.say = lambda messages: "At last."
        again = httpx.post(**ask, headers=headers | {COUNT_HEADER: "1"}, timeout=60)
        assert again.status_code == 200 and tree.counts.lost == 0
        (branch,) = gateway.episodes.end(token, "all")
        assert [call.is_retry for call in branch.calls] == [True]


@pytest.mark.parametrize(
    ("was_sent", "tools", "lost"), [(False, [], 0), (True, [], 1), (True, TOOLS, 0)]
)
def test_a_stream_without_what_an_agent_acts_on_is_retried_without_saying_so(was_sent, tools, lost):
    """As Codex does. An agent without tools may have acted on the part that it has read."""
    with gateway_with() as gateway:
        token = gateway.open()
        tree = gateway.episodes.find(token).tree
        if not was_sent:
            gateway.policy.begins = "<think>I wait"
        asked = {"input": "wait", "stream": True, "tools": tools}
        headers = {"Authorization": f"Bearer {token}"}
        wanted = "I wait" if was_sent else "response.in_progress"
        url = f"{gateway.url}/responses"
        with httpx.stream("POST", url, json=asked, headers=headers, timeout=60) as stream:
            next(line for line in stream.iter_lines() if wanted in line)
        until(lambda: tree.counts.lost == 1)
        gateway.policy.say = lambda messages: "At last."
        gateway.post("/responses", asked, token, timeout=60)
        assert tree.counts.lost == lost

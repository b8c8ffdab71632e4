"""What an episode does when a call comes to nothing."""

import numpy as np
import pytest

from ale_jax.gateway.custody.token_tree import TokenTree
from ale_jax.gateway.episode import EpisodeOptions, GatewayEpisode
from ale_jax.gateway.formats.json_calls import Hermes
from ale_jax.gateway.language import Language
from ale_jax.gateway.messages import ChatMessage, ToolCall
from ale_jax.gateway.requests import CONTEXT_FULL, ApiError, ChatRequest, SampleOptions
from tests.gateway.fake_policy import EngineEnded, FakePolicy
from tests.gateway.speech import read, render, say

TASK = say("user", "task")


def open_episode(policy, kept=1, **limits):
    language = Language(Hermes(), lambda ids: read([4, *ids])[0][1])
    keys = lambda number: np.array([0, number], np.uint32)  # noqa: E731
    return GatewayEpisode(TokenTree(render), policy, language, keys, EpisodeOptions(kept, **limits))


def request(*messages, n=1):
    return ChatRequest("m", messages, options=SampleOptions(n=n))


@pytest.fixture
def policy():
    return FakePolicy(lambda messages: f"reply to {messages[-1][1]}")


def test_an_answer_that_was_not_delivered_is_counted_and_can_be_continued(policy):
    episode = open_episode(policy)
    (pending,) = episode.ask(request(TASK))
    choice = episode.answer(pending, request(TASK))
    episode.cancel(pending)
    episode.cancel(pending)
    assert episode.tree.counts.lost == 1
    (again,) = episode.ask(request(TASK, choice.message, say("user", "more")))
    assert again.call.parent is pending.call
    assert again.conversation != pending.conversation, "that one has ended in the engine"
    assert again.num_new == len(again.call.context_ids())


def test_a_call_that_came_to_nothing_is_not_lost_with_its_client():
    policy = FakePolicy(lambda messages: None)
    episode = open_episode(policy)
    (pending,) = episode.ask(request(TASK))
    policy.end(pending.conversation)  # it fails in the engine
    episode.cancel(pending)
    assert episode.tree.counts.lost == 0


def test_a_choice_says_which_text_ended_it(policy):
    episode = open_episode(policy)
    for stop, told in ((("to", "ply"), "ply"), (("END",), "")):
        asked = ChatRequest("m", (TASK,), options=SampleOptions(stop=stop))
        (pending,) = episode.ask(asked)
        assert episode.answer(pending, asked).stop == told


def test_an_episodes_agents_get_so_many_replies_and_no_more(policy):
    episode = open_episode(policy, max_replies=3)

    def refused(number):
        with pytest.raises(ApiError, match="limit of 3 replies") as refusal:
            episode.ask(request(TASK, n=number))
        return refusal.value.status == 403

    assert len(episode.ask(request(TASK, n=2))) == 2
    assert refused(2) and len(episode.ask(request(TASK))) == 1
    assert refused(1) and len(policy.asked) == 3


def test_the_log_probabilities_that_are_told_are_the_plain_softmaxs(policy):
    episode = open_episode(policy)
    asked = ChatRequest("m", (TASK,), options=SampleOptions(top_logprobs=0))
    (pending,) = episode.ask(asked)
    told = [each.logprob for each in episode.answer(pending, asked).logprobs]
    assert told == pending.sampled.result().logp_plain.tolist()


def test_who_leaves_late_does_not_end_what_another_client_goes_on_with():
    policy = FakePolicy(lambda messages: "reply" if messages[-1][1] == "task" else None)
    episode = open_episode(policy)
    (first,) = episode.ask(request(TASK))
    reply = episode.answer(first, request(TASK)).message
    (second,) = episode.ask(request(TASK, reply, say("user", "more")))
    assert second.conversation == first.conversation
    episode.cancel(first)
    assert not policy.ended and not second.sampled.done()
    episode.cancel(second)
    assert policy.ended == [second.conversation] and second.sampled.exception()


def test_an_answer_that_is_read_while_its_client_leaves_keeps_no_conversation(policy):
    episode = open_episode(policy)
    (pending,) = episode.ask(request(TASK))
    episode.cancel(pending)
    reply = episode.answer(pending, request(TASK)).message  # in another thread
    (again,) = episode.ask(request(TASK, reply, say("user", "more")))
    assert again.call.parent is pending.call
    assert again.conversation != pending.conversation, "that one has ended in the engine"


def test_if_one_of_several_replies_cannot_begin_the_others_are_given_up(policy, monkeypatch):
    episode, reply = open_episode(policy, kept=3), policy.reply

    def refuse_the_third(conversation, *rest):
        if conversation == 2:
            raise ValueError("no more")
        return reply(conversation, *rest)

    monkeypatch.setattr(policy, "reply", refuse_the_third)
    with pytest.raises(ApiError, match="no more"):
        episode.ask(request(TASK, n=3))
    assert sorted(policy.ended) == [0, 1, 2]


@pytest.mark.parametrize(("ended", "status"), [(False, 503), (True, 410)])
def test_an_engine_that_takes_no_call_is_told_in_http(policy, monkeypatch, ended, status):
    episode = open_episode(policy)

    def gone(*_):
        if ended:  # at this very moment
            episode.end("all")
        raise EngineEnded("the engine is closed")

    monkeypatch.setattr(policy, "reply", gone)
    with pytest.raises(ApiError) as refused:
        episode.ask(request(TASK))
    assert refused.value.status == status


def test_what_is_kept_in_the_engine_is_bounded(policy):
    episode = open_episode(policy, kept=2)
    for number in range(6):
        asked = request(say("user", str(number)))
        (pending,) = episode.ask(asked)
        episode.answer(pending, asked)
    opened = {conversation for conversation, _ in policy.asked}
    assert opened - set(policy.ended) == {4, 5}, "the newest"
    several = request(TASK, n=3)
    for pending in episode.ask(several):
        episode.answer(pending, several)
    opened = {conversation for conversation, _ in policy.asked}
    assert len(opened) == 9 and len(opened - set(policy.ended)) == 2


def offering(description):
    function = {"name": "bash", "description": description, "parameters": {}}
    return ChatRequest("m", (TASK,), ({"type": "function", "function": function},))


@pytest.mark.parametrize(
    "asked",
    [
        request(say("user", "x" * 1000)),
        request(*[say("user", "")] * 1000),
        request(ChatMessage("assistant", "", tool_calls=(ToolCall("", ""),) * 1000), TASK),
        request(ChatMessage("assistant", "", tool_calls=(ToolCall("a", "{}", "x" * 1000),)), TASK),
        request(TASK, ChatMessage("tool", "", answers="x" * 1000)),
        offering("x" * 1000),
    ],
    ids=["content", "messages", "calls", "id", "answered id", "tool"],
)
def test_what_cannot_fit_into_the_context_is_refused_before_it_is_tokenized(policy, asked):
    episode = open_episode(policy, max_chars=999)
    for refuse in (episode.ask, episode.count_tokens):
        with pytest.raises(ApiError) as refused:
            refuse(asked)
        assert refused.value.code == CONTEXT_FULL
    assert episode.ask(request(TASK)) and episode.ask(offering("Runs."))

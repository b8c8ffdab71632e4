"""Agents with several conversations: what they do becomes one trajectory, all of it once."""

import contextlib
import dataclasses
import time

import jax
import numpy as np
import pytest

from ale_jax.agent.api import Reply
from ale_jax.config.engine import Sampling
from ale_jax.engine.engine import Engine
from ale_jax.gateway.messages import ChatMessage
from ale_jax.gateway.requests import CONTEXT_FULL, ApiError, ChatRequest, SampleOptions
from ale_jax.model.params import init_params
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.records import Episode, EpisodeKey, Task
from ale_jax.status import Status
from ale_jax.worlds.api import Message
from tests.engine.shapes import engine_shape
from tests.gateway.custody.talking import TalkingLedger, same_for_all
from tests.model.shapes import MOE, changed
from tests.rows import each_row

KEY = EpisodeKey("train", 3, 1, Task("trail", 7, "train"))
EPISODE = Episode(KEY, Status.FINISHED, 1.0, 2, 0, 1.0, 0.5)
TASK = (ChatMessage("system", "Work."), ChatMessage("user", "Read lemon.txt."))
SEEN = ChatMessage("tool", "next: rose.txt", answers="x")
OTHER = ChatMessage("user", "Start again.")


@pytest.fixture(scope="module")
def tokenizer():
    messages = [{"role": m.role, "content": m.content} for m in (*TASK, SEEN, OTHER)]
    return ChatTokenizer(train_bpe(messages * 10, 320))


@pytest.fixture(scope="module")
def engine(tokenizer):
    shape = changed(MOE, vocab_size=tokenizer.vocab_size)
    sizes = engine_shape(max_sequences=4, max_sequence_length=160, prefill_tokens=(16, 64))
    params = init_params(jax.random.key(0), shape)
    engine = Engine(shape, sizes, tokenizer.stop_ids, params, record_experts=True)
    yield engine
    engine.close()


@pytest.fixture
def ledger(engine, tokenizer):
    return TalkingLedger(engine, tokenizer, seed=0, limits=same_for_all(9))


@pytest.mark.heavy
@pytest.mark.parametrize(("branches", "replies"), [("all", 5), ("longest", 2), ("leaf", 1)])
def test_a_trajectory_has_the_conversations_that_are_wanted(engine, tokenizer, branches, replies):
    ledger = TalkingLedger(engine, tokenizer, 0, same_for_all(9), branches=branches)
    ledger.open("a", KEY, Sampling())
    (first,) = ask(ledger, "a", *TASK)
    ask(ledger, "a", *TASK, first, SEEN)
    ask(ledger, "a", ChatMessage("user", "Help me."), n=2)
    (last,) = ask(ledger, "a", ChatMessage("user", "Start again."))
    trajectory = ledger.close("a", EPISODE)
    sampled = trajectory.sampled_turns
    assert len(sampled) == replies
    if branches == "leaf":
        assert tokenizer.decode(sampled[0].action_ids).strip() == last.content


def ask(ledger, name, *messages, **options):
    """As an agent does through the gateway."""
    episode = ledger.episodes.find(name)
    request = ChatRequest("m", messages, options=SampleOptions(**options))
    return [episode.answer(each, request).message for each in episode.ask(request)]


def test_every_conversation_is_a_branch_and_every_reply_is_trained_on_once(ledger):
    ledger.open("a", KEY, Sampling())
    (first,) = ask(ledger, "a", *TASK)
    (sub,) = ask(ledger, "a", ChatMessage("user", "Help me."))
    (second,) = ask(ledger, "a", *TASK, first, SEEN)
    (other,) = ask(ledger, "a", *TASK, first, OTHER)
    trajectory = ledger.close("a", EPISODE)
    assert trajectory.episode == EPISODE
    longest, (fork, alone) = trajectory.turns, trajectory.side_branches
    assert [len(longest), len(alone.turns), len(fork.turns)] == [2, 1, 2]
    assert (alone.num_prefix_turns, fork.num_prefix_turns) == (0, 1)
    np.testing.assert_array_equal(fork.turns[0].action_ids, longest[0].action_ids)
    said = [turn.action_text.strip() for turn in trajectory.sampled_turns]
    assert said == [each.content for each in (first, second, other, sub)]
    assert [turn.number for turn in trajectory.sampled_turns] == [0, 2, 3, 1]
    # The outcome is the newest reply's, whichever conversation it is in.
    assert [turn.reward for turn in trajectory.sampled_turns] == [0.0, 0.0, 1.0, 0.0]
    for branch in (trajectory, alone, fork):
        tokens = sum(len(t.prompt_ids) + len(t.action_ids) for t in branch.turns)
        assert branch.expert_TLK.shape[0] == tokens
        assert (branch.expert_TLK[:-1] >= 0).all() and (branch.expert_TLK[-1] == -1).all()
    # The engine had to read the shared turn again for the fork, and found the same experts.
    shared = len(longest[0].prompt_ids) + len(longest[0].action_ids)
    np.testing.assert_array_equal(fork.expert_TLK[:shared], trajectory.expert_TLK[:shared])


def test_given_turns_are_context_for_whoever_tells_them_as_they_were(ledger):
    ledger.open("a", KEY, Sampling())
    (first,) = ask(ledger, "a", *TASK)
    ask(ledger, "a", *TASK, first, SEEN)
    given = ledger.close("a", EPISODE).turns[:1]
    ledger.open("b", KEY, Sampling(), given)
    with pytest.raises(ApiError, match="must begin with the 1 replies given"):
        ask(ledger, "b", *TASK, ChatMessage("assistant", "something else"), SEEN)
    (second,) = ask(ledger, "b", *TASK, first, SEEN)
    ask(ledger, "b", *TASK, first, SEEN, second, SEEN)
    trajectory = ledger.close("b", EPISODE)
    assert (trajectory.num_prefix_turns, len(trajectory.turns)) == (1, 3)
    np.testing.assert_array_equal(trajectory.turns[0].prompt_ids, given[0].prompt_ids)
    np.testing.assert_array_equal(trajectory.turns[0].action_ids, given[0].action_ids)
    assert len(trajectory.sampled_turns) == 2 and not trajectory.side_branches


def test_in_training_an_agent_does_not_choose_how_it_is_sampled(ledger):
    greedy = []
    for name in ("a", "b"):
        ledger.open(name, dataclasses.replace(KEY, member=len(greedy)), Sampling())
        (reply,) = ask(ledger, name, *TASK, temperature=0.0, seed=3, logit_bias={5: 9.0})
        greedy.append(reply.content)
        (turn,) = ledger.close(name, EPISODE).turns
        np.testing.assert_allclose(turn.logp_mu, turn.logp_old, atol=1e-6)
    assert greedy[0] != greedy[1], "members of a group explore"


def test_an_episode_with_a_lost_answer_is_not_trained_on(ledger):
    ledger.open("a", KEY, Sampling())
    ask(ledger, "a", *TASK)
    episode = ledger.episodes.find("a")
    (pending,) = episode.ask(ChatRequest("m", (*TASK, OTHER)))
    pending.sampled.result()
    episode.cancel(pending)  # its client had gone
    found = ledger.close("a", EPISODE).episode
    assert (found.status, found.reward) == (Status.CALL_LOST, None)
    assert "1 answers may not have reached the agent" in found.detail


def test_calls_that_ended_with_a_killed_agent_are_not_lost_and_those_before_are(ledger):
    killed = dataclasses.replace(EPISODE, status=Status.TIME_LIMIT, reward=0.0)
    for name, is_lost_before in (("a", False), ("b", True)):
        ledger.open(name, KEY, Sampling())
        ask(ledger, name, *TASK)
        episode = ledger.episodes.find(name)
        cut = episode.ask(ChatRequest("m", (*TASK, OTHER), options=SampleOptions(n=2)))
        for each in cut:
            episode.cancel(each)
        if is_lost_before:
            ask(ledger, name, *TASK)
        found = ledger.close(name, killed).episode
        expected = (Status.CALL_LOST, None) if is_lost_before else (Status.TIME_LIMIT, 0.0)
        assert (found.status, found.reward) == expected
    assert "2 answers may not have reached the agent" in found.detail


def test_an_episode_that_may_have_gone_on_from_another_reply_is_not_trained_on(ledger):
    ledger.open("a", KEY, Sampling())
    ask(ledger, "a", *TASK)
    ledger.episodes.find("a").tree.counts.ambiguous = 1
    found = ledger.close("a", EPISODE).episode
    assert (found.status, found.reward) == (Status.CALL_LOST, None)
    assert "1 continue one of several" in found.detail


def test_what_is_surely_too_long_is_refused_before_it_is_tokenized(ledger, tokenizer, monkeypatch):
    ledger.open("a", KEY, Sampling())
    monkeypatch.setattr(tokenizer, "prompt_ids", None)
    long = ChatMessage("user", "x" * (160 * tokenizer.longest_token + 1))
    with pytest.raises(ApiError) as full:
        ask(ledger, "a", long)
    assert full.value.code == CONTEXT_FULL
    assert ledger.reply("a", [Message("user", long.content)]) == Reply("", "context_full")
    ledger.close("a", None)


@each_row(
    "then, status",
    [
        ("another long message", Status.TOKEN_LIMIT),
        ("a fourth call", Status.TURN_LIMIT),
        ("a shorter history", Status.REPLY_LIMIT),  # the reply to which was cut
    ],
)
def test_an_episode_whose_last_call_was_refused_ended_at_that_limit(
    engine, tokenizer, then, status
):
    """Whichever way its agent's program exits."""
    full, short = ChatMessage("user", "Read lemon.txt. " * 60), ChatMessage("user", "Go.")
    turns = 2 if then == "a fourth call" else 4
    ledger = TalkingLedger(engine, tokenizer, 0, same_for_all(9, turns))
    for exits in (Status.FINISHED, Status.BROKE_OFF):
        ledger.open(exits, KEY, Sampling())
        for each in (TASK, (full,), (short,), (short, full) if "message" in then else (short,)):
            with contextlib.suppress(ApiError):
                ask(ledger, exits, *each)
        program = dataclasses.replace(EPISODE, status=exits, turns=0, cut_replies=None)
        found = ledger.close(exits, program).episode
        assert (found.status, found.reward) == (status, 1.0)


def test_a_refusal_is_no_lost_answer(ledger):
    ledger.open("a", KEY, Sampling())
    ask(ledger, "a", *TASK)
    with pytest.raises(ApiError) as full:
        ask(ledger, "a", ChatMessage("user", "Read lemon.txt. " * 60))
    assert full.value.code == CONTEXT_FULL
    trajectory = ledger.close("a", EPISODE)
    assert trajectory.episode.status is Status.FINISHED and len(trajectory.turns) == 1


def test_what_a_program_waited_for_the_policy_is_told(ledger):
    ledger.open("a", KEY, Sampling())
    began = time.monotonic()
    ask(ledger, "a", *TASK)
    seconds = time.monotonic() - began
    time.sleep(0.2)  # its own time
    found = ledger.close("a", dataclasses.replace(EPISODE, cut_replies=None)).episode
    assert 0.0 < found.policy_seconds <= seconds


def test_the_agent_waits_as_long_as_one_of_its_calls_does(ledger):
    ledger.open("a", KEY, Sampling())
    told = []
    ledger.observe(lambda name, what, start, tokens: told.append((name, what, start)))
    episode = ledger.episodes.find("a")
    request = ChatRequest("m", TASK, options=SampleOptions(n=2))
    first, second = episode.ask(request)
    episode.answer(first, request)
    assert ledger.activity("a").waits
    episode.answer(second, request)
    assert not ledger.activity("a").waits
    assert told == [("a", "asked", None), ("a", "answered", 0)]
    ledger.close("a", None)

"""Agents that change what they have told before, so that each call begins a conversation: from
their calls to the batches that are trained on."""

import dataclasses
import io
import itertools
from collections import Counter, defaultdict
from concurrent.futures import Future

import numpy as np
import pytest

from ale_jax.config.algo import AdvantageHypers, AlgoConfig
from ale_jax.config.credit import CONVERSATION, CreditHypers
from ale_jax.config.engine import Sampling
from ale_jax.config.learn import Shape
from ale_jax.config.loss import LossHypers
from ale_jax.data.replay import Group
from ale_jax.data.trajectory_frames import encode_frame, read_frames
from ale_jax.engine.request import Sampled
from ale_jax.gateway.custody.ledger import Ledger
from ale_jax.gateway.messages import ChatMessage
from ale_jax.gateway.requests import ChatRequest
from ale_jax.learn.learner import assemble
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.records import Episode, EpisodeKey, Task
from ale_jax.status import Status
from ale_jax.system.reply_metrics import reply_metrics
from tests.gateway.custody.talking import same_for_all
from tests.rows import each_row

GROUPS, MEMBERS = 25, 4
ROWS = Shape(8, 1024, 32)
RETURNS = AlgoConfig(gamma=0.9, advantage=AdvantageHypers("chunk_return"))
WORDS = ["red", "green", "blue", "look", "open", "read", "write", "done"]


@pytest.fixture(scope="module")
def tokenizer():
    text = " ".join(WORDS) + " The task. Seen. Calling tools. It is 12 o'clock. Remember."
    return ChatTokenizer(train_bpe([{"role": "user", "content": text}] * 10, 320))


class ScriptedEngine:
    """Says what it is told to. written: the ids of every reply."""

    max_sequence_length, version, vocab_size = 4096, 0, 1 << 16

    def __init__(self, tokenizer):
        self._tokenizer, self._numbers = tokenizer, itertools.count()
        self.says, self.written = iter(()), []

    def open(self, adapter):
        return next(self._numbers)

    def end(self, conversation):
        pass

    def reply(self, conversation, new_ids, most, sampling, key, options):
        ids = self._tokenizer.reply_ids(next(self.says))
        self.written.append(ids)
        logp, future = np.full(len(ids), -1.0, np.float32), Future()
        future.set_result(Sampled(ids, logp, logp, np.zeros(len(ids), np.int32), "stop"))
        return future


def tool(name):
    return {"type": "function", "function": {"name": name, "parameters": {}}}


def as_it_was(told, turn):
    return told, ()


def with_a_clock(told, turn):
    return [ChatMessage("system", f"It is {turn} o'clock."), *told], ()


def with_a_reminder(told, turn):
    """At the end of the newest message alone."""
    return [*told[:-1], ChatMessage(told[-1].role, told[-1].content + " Remember.")], ()


def with_more_tools(told, turn):
    return told, tuple(tool(f"tool_{n}") for n in range(turn + 1))


def in_other_words(told, turn):
    """The policy's replies, with the call that the agent made of each."""
    return [
        dataclasses.replace(m, content=f"Calling tools\n{m.content}")
        if m.role == "assistant"
        else m
        for m in told
    ], ()


REWRITERS = (with_a_clock, with_a_reminder, with_more_tools, in_other_words)


def play(ledger, engine, group, member, rewrite):
    """An episode of 3 to 6 turns, read from its frame. Every other member's succeeds."""
    draw = np.random.default_rng([group, member])
    says = [" ".join(draw.choice(WORDS, 5)) for _ in range(draw.integers(3, 7))]
    key = EpisodeKey("train", group, member, Task("count", group, "train"))
    name = f"{group}.{member}"
    ledger.open(name, key, Sampling())
    asked, told, engine.says = ledger.episodes.find(name), [], iter(says)
    for turn in range(len(says)):
        told.append(ChatMessage("tool", f"Seen {turn}.") if turn else ChatMessage("user", "Task."))
        messages, tools = rewrite(told, turn)
        request = ChatRequest("", tuple(messages), tools)
        (pending,) = asked.ask(request)
        told.append(asked.answer(pending, request).message)
    reward = float(member % 2)
    episode = Episode(key, Status.FINISHED, reward, 0, 0, 1.0, 0.5, cut_replies=None)
    frame = encode_frame(ledger.close(name, episode))
    (trajectory,) = read_frames(io.BytesIO(frame))
    return trajectory


def groups_of(tokenizer, rewriters):
    """Returns 100 episodes in groups, and the ids of all replies that were sampled for them."""
    engine = ScriptedEngine(tokenizer)
    ledger = Ledger(engine, tokenizer, seed=0, limits=same_for_all(64))

    def member(g, m):
        return play(ledger, engine, g, m, rewriters[(g + m) % len(rewriters)])

    groups = [Group(g, tuple(member(g, m) for m in range(MEMBERS))) for g in range(GROUPS)]
    return groups, engine.written


@pytest.fixture(scope="module")
def rewritten(tokenizer):
    return groups_of(tokenizer, REWRITERS)


@pytest.fixture(scope="module")
def kept(tokenizer):
    return groups_of(tokenizer, [as_it_was])


def replies_of(groups, algo):
    """Of each episode, the replies that are trained on (their ids, advantage, and share in what the
    loss takes of the episode), and the loss denominator."""
    step, found = assemble(groups, algo, ROWS), defaultdict(list)
    (share,) = step.minibatches
    means = algo.loss.aggregation == "trajectory_means"
    for batch in step.batches:
        weight_BT = np.ones(batch.chunk_BT.shape) if batch.weight_BT is None else batch.weight_BT
        for b in range(len(batch.chunk_BT)):
            for chunk in range(batch.chunk_BT[b].max() + 1):
                own = batch.chunk_BT[b] == chunk
                segment = batch.segment_BT[b] == batch.segment_BT[b][own][0]
                tokens = (segment & (batch.chunk_BT[b] >= 0)).sum() if means else 1
                (advantage,) = set(batch.advantage_BT[b][own].tolist())
                place = int(batch.group_BT[b][own][0]), int(batch.member_BT[b][own][0])
                weight = float((weight_BT[b][own] / tokens).sum())
                found[place].append((batch.tokens_BT[b][own].tobytes(), advantage, weight))
    return found, float(share.loss_denominator)


@pytest.mark.heavy
def test_no_token_is_lost_and_each_is_trained_on_once(rewritten):
    groups, written = rewritten
    found, _ = replies_of(groups, RETURNS)
    trained = Counter(ids for replies in found.values() for ids, _, _ in replies)
    assert len(found) == 100 and len(written) > 400
    assert trained == Counter(ids.tobytes() for ids in written)


@each_row("aggregation", ["tokens", "trajectory_means", "trajectories"])
def test_a_rewritten_history_changes_neither_credit_nor_weight(rewritten, kept, aggregation):
    algo = dataclasses.replace(RETURNS, loss=LossHypers(aggregation=aggregation))
    (found, count), (wanted, number) = (replies_of(each[0], algo) for each in (rewritten, kept))
    assert found.keys() == wanted.keys() and count == number
    for place, replies in wanted.items():
        for own, same in zip(sorted(found[place]), sorted(replies), strict=True):
            assert own[:2] == same[:2], "the same words, with the credit of their place"
            np.testing.assert_allclose(own[2], same[2], rtol=1e-5)
        if aggregation == "trajectory_means":
            np.testing.assert_allclose(sum(w for _, _, w in found[place]), 1.0, rtol=1e-5)
            assert count == 100


def test_where_the_config_says_so_every_conversation_weighs_as_an_episode(rewritten):
    loss, credit = LossHypers(aggregation="trajectory_means"), CreditHypers(trajectory=CONVERSATION)
    groups, written = rewritten
    found, count = replies_of(groups, dataclasses.replace(RETURNS, loss=loss, credit=credit))
    assert count == len(written) > 400
    assert {round(w, 5) for replies in found.values() for _, _, w in replies} == {1.0}


def test_it_is_noticed(rewritten, kept):
    for (groups, _), branching in ((rewritten, 1.0), (kept, 0.0)):
        figures = reply_metrics([t for group in groups for t in group.members])
        assert figures["branching"] == branching
        assert figures["left_out_tokens"] == figures["lost_replies"] == 0
        assert figures["replies_replaced"] == figures["replies_side"] == 0

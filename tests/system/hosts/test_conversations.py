"""A follower's conversations, seen from the controller: as those of its own engine."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from ale_jax.config.engine import Sampling
from ale_jax.data.packing import text_turn
from ale_jax.engine.engine import Engine
from ale_jax.engine.request import EngineStopped
from ale_jax.gateway.messages import ChatMessage
from ale_jax.gateway.requests import ChatRequest
from ale_jax.model.params import init_params
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.records import Episode, EpisodeKey, Task
from ale_jax.status import Status
from ale_jax.system.hosts import conversations as remote_conversations
from ale_jax.system.hosts.connection import Connection
from ale_jax.system.hosts.conversations import ConversationService, RemoteLedger
from ale_jax.worlds.api import Message
from tests.engine.shapes import engine_shape
from tests.gateway.custody.talking import TalkingLedger, same_for_all
from tests.model.shapes import MOE, changed

KEY = EpisodeKey("train", 3, 1, Task("trail", 7, "train"))
FIRST = [Message("system", "Work."), Message("user", "Read lemon.txt.")]
OBSERVATION = [Message("tool", "next: rose.txt")]
EPISODE = Episode(KEY, Status.FINISHED, 1.0, 2, 0, 1.0, 0.5, detail="ä")
PREFIX = (text_turn([5, 6], [7, 8], "Work.", "a"), text_turn([9], [10, 2], "lemon", "b"))
TOLD = [
    *(*FIRST, Message("assistant", "a")),
    *(Message("tool", "lemon"), Message("assistant", "b"), *OBSERVATION),
]


@pytest.fixture(scope="module")
def ledger():
    """That of the follower."""
    messages = [{"role": m.role, "content": m.content} for m in FIRST + OBSERVATION]
    tokenizer = ChatTokenizer(train_bpe(messages * 10, 320))
    shape = changed(MOE, vocab_size=tokenizer.vocab_size)
    sizes = engine_shape(max_sequences=2, max_sequence_length=160, prefill_tokens=(16, 64))
    engine = Engine(shape, sizes, tokenizer.stop_ids, init_params(jax.random.key(0), shape))
    yield TalkingLedger(engine, tokenizer, seed=0, limits=same_for_all(9))
    engine.close()


@pytest.fixture
def remote(ledger):
    """As the controller has it; and the follower's end of its connection."""
    ours, theirs = map(Connection, socket.socketpair())
    ConversationService(theirs, ledger)
    yield RemoteLedger(ours), theirs
    ours.close()
    theirs.close()


def _wait(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.heavy
def test_a_conversation_is_the_same_as_with_an_engine_at_hand(ledger, remote):
    found, (remote, _) = [], remote
    for conversations, name in ((ledger, "near"), (remote, "far")):
        conversations.open(name, KEY, Sampling(), PREFIX, 1)
        # Agents talk to the follower itself.
        replies = [ledger.reply(name, TOLD), ledger.reply(name, OBSERVATION)]
        found.append((replies, conversations.close(name, EPISODE)))
    (replies, near), (same_replies, far) = found
    assert replies == same_replies and far.episode == EPISODE
    assert (far.start_version, far.num_prefix_turns) == (near.start_version, 2)
    for turn, same in zip(near.turns, far.turns, strict=True):
        jax.tree.map(np.testing.assert_array_equal, vars(turn), vars(same))
    assert remote.sampled_tokens() >= sum(len(turn.action_ids) for turn in far.turns[2:])


def test_the_masks_of_a_held_reply_come_with_its_trajectory(ledger, remote):
    request = ChatRequest("m", (ChatMessage("user", "Read."),), schema={"enum": ["ab", "cd"]})
    found = []
    for conversations, name in ((ledger, "near held"), (remote[0], "far held")):
        conversations.open(name, KEY, Sampling(), (), 0)
        episode = ledger.episodes.find(name)
        (pending,) = episode.ask(request)
        episode.answer(pending, request)
        found.append(conversations.close(name, EPISODE))
    near, far = found
    assert (near.turns[0].mask_id >= 0).any()
    np.testing.assert_array_equal(far.turns[0].mask_id, near.turns[0].mask_id)
    np.testing.assert_array_equal(far.mask_Iw, near.mask_Iw)


def test_the_controller_knows_whose_turn_it_is(ledger, remote):
    remote, _ = remote
    remote.open("a", KEY, Sampling(), (), 0)
    assert not remote.activity("a").asked and remote.start_version("a") is None
    ledger.reply("a", FIRST)
    _wait(lambda: remote.start_version("a") == 0)
    seen = remote.activity("a")
    assert seen.asked and not seen.waits
    assert remote.close("a", None) is None
    with pytest.raises(KeyError):
        remote.activity("a")
    with pytest.raises(KeyError):
        ledger.activity("a")


def test_a_stopped_conversation_answers_no_more(ledger, remote):
    remote, _ = remote
    remote.open("b", KEY, Sampling(), (), 0)
    remote.stop("b")
    with ThreadPoolExecutor(1) as pool, pytest.raises(EngineStopped):
        pool.submit(ledger.reply, "b", FIRST).result(timeout=10)
    remote.close("b", None)


def test_a_follower_that_is_gone_fails_what_needs_it(remote, monkeypatch):
    monkeypatch.setattr(remote_conversations, "ANSWER_S", 0.2)
    remote, theirs = remote
    theirs.close()
    with pytest.raises(EngineStopped, match="does not answer"):
        remote.open("c", KEY, Sampling(), (), 0)
    assert remote.close("c", None) is None

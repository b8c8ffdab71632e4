"""A world with tools, from the template and the grammar of calls to what is trained on."""

import contextlib
import dataclasses
import json

import jax
import numpy as np
import pytest

from ale_jax.agent.transcripts import play_oracle
from ale_jax.config.agent import AgentLimits
from ale_jax.config.engine import Sampling
from ale_jax.config.worlds import Domain
from ale_jax.engine.engine import Engine
from ale_jax.gateway.app import make_app
from ale_jax.gateway.custody.ledger import Ledger, ReplyLimits
from ale_jax.gateway.server import served
from ale_jax.model.params import init_params
from ale_jax.model.tokenizer import ChatTokenizer, tools_text, train_bpe
from ale_jax.recorded.formats import conversation_of
from ale_jax.recorded.samples import exchanges_of
from ale_jax.records import FREE, EpisodeKey, Prefix, Task
from ale_jax.rollout.worker import RolloutWorker, WorkerSpec
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.status import Status
from ale_jax.system.demonstrations import oracle_expert
from ale_jax.system.evaluated import record_of_trajectory
from ale_jax.worlds import Reply
from ale_jax.worlds.families import open_families
from tests.engine.shapes import engine_shape
from tests.model.shapes import MOE, changed
from tests.system.tool_world import OPEN

pytestmark = pytest.mark.heavy
DOMAIN = Domain(world="tests.system.tool_world:Drawers")
TASK = Task("drawers", 7, "train")
KEY = EpisodeKey("train", 0, 0, TASK)


def shown():
    family = open_families((DOMAIN,))["drawers"]
    return play_oracle(family, None, TASK)


@pytest.fixture(scope="module")
def tokenizer():
    messages = [dataclasses.asdict(each) for each in shown()[1].messages]
    tools = {"role": "system", "content": tools_text([OPEN])}
    return ChatTokenizer(train_bpe([tools, *messages] * 10, 400))


@pytest.fixture(scope="module")
def play(tokenizer):
    """Plays an episode by a policy that knows nothing; returns its trajectory."""
    shape = changed(MOE, vocab_size=tokenizer.vocab_size)
    sizes = engine_shape(max_sequences=2, max_sequence_length=448, prefill_tokens=(16, 64))
    params = init_params(jax.random.key(0), shape)
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(
            contextlib.closing(Engine(shape, sizes, tokenizer.stop_ids, params))
        )
        ledger = Ledger(engine, tokenizer, 0, lambda task: ReplyLimits(96))
        url = stack.enter_context(served(make_app(ledger.episodes, "policy")))
        spec = WorkerSpec("none", SandboxSpec(), AgentLimits(turns=4), (DOMAIN,))
        worker = stack.enter_context(contextlib.closing(RolloutWorker(spec)))

        def play(name, key=KEY, prefix_turns=(), prefix=None):
            ledger.open(name, key, Sampling(), prefix_turns)
            episode = worker.play(key, url, name, prefix).episode
            return ledger.close(name, episode)

        yield play


def test_a_policy_that_knows_nothing_calls_as_it_is_held_to(play):
    trajectory = play("a")
    episode = trajectory.episode
    assert (episode.status, episode.malformed_calls) == (Status.FINISHED, 0), episode.detail
    calls = [call for turn in trajectory.turns for call in Reply(turn.action_text).calls]
    assert {call.name for call in calls} == {"open"}
    assert dict(episode.metrics) == {"opened": len(calls)}
    assert all((turn.mask_id != FREE).any() for turn in trajectory.turns)
    said = set(trajectory.turns[1].prompt_text.splitlines())
    assert said <= {"a coin", "nothing"}


def test_an_episode_goes_on_after_a_prefix_with_calls(play):
    first, second = play("e").turns
    key = dataclasses.replace(KEY, num_prefix_turns=1)
    seen = ("Find the coins.", second.prompt_text)
    trajectory = play("c", key, (first,), Prefix(seen, (first.action_text,)))
    assert trajectory.episode.status is Status.FINISHED, trajectory.episode.detail
    given, own = trajectory.turns
    np.testing.assert_array_equal(given.action_ids, first.action_ids)
    assert trajectory.num_prefix_turns == 1 and Reply(own.action_text).calls


def test_a_demonstration_reads_what_the_policy_reads(play, tokenizer):
    episode, transcript = shown()
    assert episode.is_solved and transcript.tools == (OPEN,)
    expert = oracle_expert(TASK, transcript, tokenizer)
    played = play("d")
    np.testing.assert_array_equal(expert.turns[0].prompt_ids, played.turns[0].prompt_ids)
    assert tokenizer.decode(expert.turns[0].action_ids) == transcript.messages[1].content


def test_a_recorded_episode_reads_what_the_policy_read(play, tokenizer):
    """Also with the results of several calls, which are messages of their own."""
    families, key = open_families((DOMAIN,)), EpisodeKey("eval/a", 0, 0, TASK)
    trajectory = play("f", key)
    record = record_of_trajectory(families, trajectory)
    told = json.loads(json.dumps(dataclasses.asdict(record)))
    exchanges = exchanges_of(conversation_of(told), tokenizer)
    end = tokenizer.stop_ids[0]
    for (prompt_ids, reply_ids), turn in zip(exchanges, trajectory.turns, strict=True):
        # A reply that was cut off is ended by what follows it, and a recorded one by itself.
        read_ids = turn.prompt_ids[1:] if turn.prompt_ids[0] == end else turn.prompt_ids
        np.testing.assert_array_equal(prompt_ids, read_ids)
        assert Reply(tokenizer.decode(reply_ids)).calls == Reply(turn.action_text).calls
    results = [each for each in record.messages if each["role"] == "tool"]
    assert len(results) == len(Reply(trajectory.turns[0].action_text).calls)

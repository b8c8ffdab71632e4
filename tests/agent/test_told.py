"""What an evaluation tells of its conversation."""

import dataclasses

from ale_jax.agent.loop import ScriptedPolicy
from ale_jax.config.agent import AgentLimits
from ale_jax.evaluation.players import messages_of
from ale_jax.records import EpisodeKey, Prefix, Task
from tests.agent.fake_world import FakeWorld, play
from tests.agent.test_loop import StoppingPolicy

TASK = Task("trail", 7, "train")
TRAINED, EVALUATED = EpisodeKey("train", 0, 0, TASK), EpisodeKey("eval/a", 0, 0, TASK)
LIMITS = AgentLimits()


def test_an_evaluation_tells_its_conversation_and_which_replies_failed():
    episode = play(FakeWorld(), ScriptedPolicy(["a", "bad", "end"]), EVALUATED, LIMITS)
    assert episode.told == (
        ("system", "be brief", False),
        ("user", "do 7", False),
        ("assistant", "a", False),
        ("tool", "saw a", False),
        ("assistant", "bad", True),
        ("tool", "saw bad", False),
        ("assistant", "end", False),
    )
    assert not play(FakeWorld(), ScriptedPolicy(["a", "end"]), TRAINED, LIMITS).told


def test_training_tells_it_if_it_is_recorded_and_a_prefix_is_not_the_policys(tmp_path):
    limits, given = AgentLimits(record_episodes=True), Prefix(("do 7", "saw a"), ("a",))
    key = dataclasses.replace(TRAINED, num_prefix_turns=1)
    episode = play(FakeWorld(), ScriptedPolicy(["bad", "c", "end"]), key, limits, given)
    replies = [(text, failed) for role, text, failed in episode.told if role == "assistant"]
    assert replies == [("a", False), ("bad", True), ("c", False), ("end", False)]
    episode = dataclasses.replace(episode, cut_replies=(1,))
    written = [message for message in messages_of(episode) if message["role"] == "assistant"]
    assert [message.get("weight", 1) for message in written] == [0, 1, 0, 1]


def test_a_conversation_that_fills_the_context_ends_without_an_empty_reply():
    for text, roles in (("", "suat"), ("cut", "suata")):
        policy = StoppingPolicy("stop", "context_full", texts=["a", text])
        told = play(FakeWorld(), policy, EVALUATED, LIMITS).told
        assert "".join(role[0] for role, *_ in told) == roles

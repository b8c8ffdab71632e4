"""What an evaluation tells of its conversation."""

from ale_jax.agent.loop import ScriptedPolicy
from ale_jax.config.agent import AgentLimits
from ale_jax.records import EpisodeKey, Task
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


def test_a_conversation_that_fills_the_context_ends_without_an_empty_reply():
    for text, roles in (("", "suat"), ("cut", "suata")):
        policy = StoppingPolicy("stop", "context_full", texts=["a", text])
        told = play(FakeWorld(), policy, EVALUATED, LIMITS).told
        assert "".join(role[0] for role, *_ in told) == roles

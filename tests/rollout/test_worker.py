"""A rollout worker, without an engine behind it."""

from types import SimpleNamespace

from ale_jax.config.agent import AgentLimits
from ale_jax.records import EpisodeKey, Task
from ale_jax.rollout.worker import RolloutWorker, WorkerSpec
from ale_jax.status import Status
from tests.rollout.test_play import TALK, FakeEnv

NOBODY = "http://127.0.0.1:9/v1"


def test_a_config_may_say_from_which_reward_a_family_is_solved():
    worlds = SimpleNamespace(make_env=FakeEnv, needs_sandbox=lambda task: False)
    for solved_at, expected in (((), 1.0), (((TALK, 0.5),), 0.5), ((("other", 0.5),), 1.0)):
        spec = WorkerSpec("none", None, AgentLimits(), solved_at=solved_at)
        key = EpisodeKey("train", 0, 0, Task(TALK, 1, "train"))
        episode = RolloutWorker(spec, worlds).play(key, NOBODY, "name", None).episode
        assert (episode.status, episode.solved_at) == (Status.MODEL_ERROR, expected)

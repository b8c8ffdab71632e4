"""A rollout worker, without an engine behind it."""

from ale_jax.config.agent import AgentLimits
from ale_jax.config.worlds import Domain
from ale_jax.records import EpisodeKey, Task
from ale_jax.rollout.worker import RolloutWorker, WorkerSpec
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.status import Status

NOBODY = "http://127.0.0.1:9/v1"


def test_a_config_may_say_from_which_reward_a_family_is_solved():
    for solved_at, expected in ((0.0, 1.0), (0.5, 0.5)):
        domains = (Domain("countdown", solved_at=solved_at),)
        worker = RolloutWorker(WorkerSpec("none", SandboxSpec(), AgentLimits(), domains))
        key = EpisodeKey("train", 0, 0, Task("countdown3", 1, "train"))
        episode = worker.play(key, NOBODY, "name", None).episode
        assert (episode.status, episode.solved_at) == (Status.MODEL_ERROR, expected)

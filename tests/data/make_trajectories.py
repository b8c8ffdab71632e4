"""Small trajectories for the tests of the host side."""

import numpy as np

from ale_jax.records import Episode, EpisodeKey, Task, Trajectory, Turn
from ale_jax.status import Status


def make_turn(prompt, action, reward=0.0, version=0):
    """Log-probabilities that name their token: -id/100 for mu, -id/200 for old."""
    action = np.array(action, np.int32)
    return Turn(
        prompt_ids=np.array(prompt, np.int32),
        action_ids=action,
        logp_mu=(-action / 100).astype(np.float32),
        logp_old=(-action / 200).astype(np.float32),
        version=np.full(len(action), version, np.int32),
        action_text="",
        prompt_text="",
        reward=reward,
    )


def make_trajectory(group, member, turns=(), status=Status.FINISHED, reward=1.0, start_version=0):
    key = EpisodeKey("train", group, member, Task("fake", group, "train"))
    episode = Episode(key, status, reward, len(turns), 0, seconds=1.0, env_seconds=0.5)
    return Trajectory(episode, tuple(turns), start_version)

"""Evaluations: which tasks, and who is counted."""

import dataclasses
import re

import pytest

from ale_jax.config.worlds import Domain, EvalConfig
from ale_jax.status import Status
from ale_jax.system.run_logger import evaluation_line
from ale_jax.system.tasks import require_judged, tally
from ale_jax.worlds.families import open_families
from ale_jax.worlds.items import SEEDS
from ale_jax.worlds.schedule import Schedule
from tests.data.make_trajectories import make_trajectory

TRAIN, HELD_OUT = (Domain("shell", ("trail", "count")),), (Domain("shell", ("relay",)),)
RUN = Schedule(open_families((*TRAIN, *HELD_OUT)), TRAIN, HELD_OUT, TRAIN, seed=0)
CONFIG = EvalConfig(tasks=6, held_out_tasks=2, every=0)


def _played(key, reward, status=Status.FINISHED):
    trajectory = make_trajectory(key.group, 0, status=status, reward=reward)
    episode = dataclasses.replace(trajectory.episode, key=key)
    return dataclasses.replace(trajectory, episode=episode)


def test_every_evaluation_plays_the_same_unseen_tasks():
    keys = RUN.evaluation("final", CONFIG)
    assert len({s.task for s in keys}) == len(keys) == 8
    assert [s.task for s in keys] == [s.task for s in RUN.evaluation("warm", CONFIG)]
    assert all(s.task.item in SEEDS["eval"] for s in keys)
    assert not any(s.task.item in SEEDS["train"] for s in keys)
    families = [s.task.family for s in keys]
    assert {f: families.count(f) for f in families} == {"trail": 3, "count": 3, "relay": 2}


def test_what_the_system_lost_is_not_a_failure_of_the_policy():
    keys = RUN.evaluation("final", CONFIG)
    rewards = [1.0, 0.25, 1.0, None, 1.0, 0.0, 0.01, 1.0]
    played = [
        _played(s, r, Status.FINISHED if r is not None else Status.ACTOR_LOST)
        for s, r in zip(keys, rewards, strict=True)
    ]
    evaluation = tally("final", 7, 1.0, played, RUN)
    assert (evaluation.families["trail"].successes, evaluation.families["trail"].tasks) == (3, 3)
    assert (evaluation.families["count"].successes, evaluation.families["count"].tasks) == (0, 2)
    assert evaluation.families["relay"].held_out
    line = evaluation_line(evaluation)
    assert re.search(r"trained families 3/5 = 60.0% \[.*\], mean reward 0.65;", line)
    assert re.search(r"held-out families 1/2 = 50.0% \[.*\], mean reward 0.505$", line)


def test_an_evaluation_of_which_most_was_lost_is_an_error():
    keys = RUN.evaluation("final", CONFIG)
    for judged in (4, 3):
        rewards = [1.0] * judged + [None] * (len(keys) - judged)
        evaluation = tally("final", 7, 1.0, list(map(_played, keys, rewards)), RUN)
        if judged == 4:
            require_judged(evaluation, len(keys))
    with pytest.raises(RuntimeError, match="of 8 episodes of evaluation final only 3 could be"):
        require_judged(evaluation, len(keys))

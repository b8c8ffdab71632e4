"""Openings that are slow to replay are restored from a snapshot, where that is the same state."""

import functools

import pytest

from ale_jax.agent.api import StateMemory
from ale_jax.agent.tools import bash, render_tool_call
from ale_jax.data.experts import Expert, assign
from ale_jax.records import EpisodeKey, RolloutRequest, Task
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.status import Status
from tests.played_worlds import OurWorlds
from tests.system.conftest import SPEC
from tests.system.scripted_rollouts import Rollouts, oracle_script

TASK = Task("rename", 5, "train")


@pytest.fixture
def rig(runtime_name):
    """Rollouts that keep every state, and the commands that their environments were given."""
    steps = []

    class Watched(OurWorlds):
        def open(self, task, sandbox):
            world = super().open(task, sandbox)
            step = world.step
            world.step = lambda action: (steps.append(action), step(action))[1]
            return world

    start = functools.partial(pick_runtime(runtime_name, SPEC).start, SPEC, {})
    rollouts = Rollouts(start, Watched(), StateMemory(slow_s=0.0))
    yield rollouts, steps
    rollouts.close()


def play_twice_after(rollouts, steps, script):
    """The script's expert, then its last call twice, after all the others; the steps of each."""
    expert = Expert.of(rollouts.play(RolloutRequest(EpisodeKey("oracle", 0, 0, TASK)), script))
    key = EpisodeKey("train", 0, 0, TASK, num_prefix_turns=len(script) - 1)
    played = []
    for _ in range(2):
        steps.clear()
        trajectory = rollouts.play(assign(key, expert), script)
        assert (trajectory.episode.status, trajectory.episode.reward) == (Status.FINISHED, 1.0)
        played.append(list(steps))
    return played


def test_the_second_episode_is_not_replayed(rig):
    script = oracle_script(TASK)
    first, second = play_twice_after(*rig, script)
    assert (first, second) == (script, script[-1:])


def test_a_session_that_files_do_not_bring_back_is_replayed_each_time(rig):
    script = [render_tool_call(bash("X=1")), *oracle_script(TASK)]
    first, second = play_twice_after(*rig, script)
    assert first == second == script

"""Where training is in its tasks."""

import dataclasses
import json

import pytest

from ale_jax.data.replay import Group
from ale_jax.system.tasks import Cursor
from tests.data.make_trajectories import make_trajectory, make_turn


def test_a_position_is_restored_as_it_was_saved_and_one_of_an_earlier_version_is_refused():
    cursor = Cursor(step=3, groups=(4, 7), next_groups=(9, 8), round=(0, 1, 0))
    saved = json.loads(json.dumps(dataclasses.asdict(cursor)))
    assert Cursor.restore(saved) == cursor
    del saved["next_groups"]
    with pytest.raises(ValueError, match="use the version that wrote it"):
        Cursor.restore(saved | {"next_group": 9})


def test_episodes_that_a_second_step_uses_are_counted_once():
    turns = [make_turn([1, 2], [3, 4, 5])]
    used = Group(0, (make_trajectory(0, 0, turns), make_trajectory(0, 1, turns)), is_reused=True)
    new = Group(1, tuple(make_trajectory(1, n, turns, start_version=1) for n in (0, 1)))
    after = Cursor(step=2, episodes=2, policy_tokens=6).after([used, new])
    assert (after.episodes, after.policy_tokens) == (4, 12)
    assert (after.step, after.max_staleness) == (3, 2)

import numpy as np
import pytest

from ale_jax.data.replay import Group
from ale_jax.data.rewards import credited_samples, tabulate_rewards
from ale_jax.records import Status
from tests.data.make_trajectories import make_trajectory, make_turn


def turns(*rewards):
    return [make_turn([1], [2], reward=r) for r in rewards]


GROUPS = [
    Group(
        7,
        (
            make_trajectory(7, 0, turns(0.0, 1.0)),
            make_trajectory(7, 1, turns(0.5), reward=0.5),
        ),
    ),
    Group(
        9,
        (
            make_trajectory(9, 0, turns(0.0), status=Status.SANDBOX_LOST, reward=None),
            make_trajectory(9, 1, (), status=Status.TOKEN_LIMIT, reward=0.0),
        ),
    ),
]


def test_one_row_per_member_whatever_its_fate():
    table = tabulate_rewards(GROUPS, max_chunks=3)
    np.testing.assert_array_equal(table.reward_NC, [[0, 1, 0], [0.5, 0, 0], [0, 0, 0], [0, 0, 0]])
    np.testing.assert_array_equal(table.outcome_N, [1, 0.5, 0, 0])
    np.testing.assert_array_equal(table.num_chunks_N, [2, 1, 1, 0])
    np.testing.assert_array_equal(table.group_N, [0, 0, 1, 1])
    np.testing.assert_array_equal(table.valid_N, [True, True, False, True])


def test_credit_goes_back_to_the_valid_trajectories():
    table = tabulate_rewards(GROUPS, max_chunks=3)
    advantage_NC = np.arange(12, dtype=np.float32).reshape(4, 3)
    samples = credited_samples(table, advantage_NC, np.array([True, False, True, False]))
    assert [s.advantage_C.tolist() for s in samples] == [[0, 1], [3], []]
    assert [s.positive for s in samples] == [True, False, False]


def test_too_many_chunks_are_refused_with_the_remedy():
    with pytest.raises(ValueError, match="2 chunks but chunks_per_row is 1: raise it"):
        tabulate_rewards(GROUPS, max_chunks=1)

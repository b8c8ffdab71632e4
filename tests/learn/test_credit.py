"""A step's batches: who teaches, who only counts."""

import numpy as np

from ale_jax.algo.grpo import GrpoHypers
from ale_jax.algo.ipa import IpaHypers
from ale_jax.data.packing import Shape
from ale_jax.data.replay import Group
from ale_jax.learn import credit
from ale_jax.records import Status
from tests.data.make_trajectories import make_trajectory, make_turn

SHAPE = Shape(rows=2, row_tokens=16, chunks_per_row=4)


def _member(group, member, reward, status=Status.FINISHED):
    turns = [make_turn([1, 2], [3, 4]), make_turn([5], [6, 7, 8], reward=reward or 0.0)]
    return make_trajectory(group, member, turns, status=status, reward=reward)


MIXED = Group(0, (_member(0, 0, 1.0), _member(0, 1, 0.0)))
EQUAL = Group(1, (_member(1, 0, 1.0), _member(1, 1, 1.0)))
ONE_LOST = Group(2, (_member(2, 0, 1.0), _member(2, 1, None, Status.SANDBOX_LOST)))


def test_groups_of_equals_are_counted_and_not_computed():
    step = credit.assemble([MIXED, EQUAL], credit.ipa(IpaHypers(gamma=0.5)), SHAPE)
    assert [s.positive for s in step.samples] == [True, False]
    assert step.normaliser == 4 * 5  # policy tokens of all four
    np.testing.assert_allclose(step.samples[0].advantage_C, [0.25, 0.5])  # gamma (R - 1/2), R - 1/2
    np.testing.assert_allclose(step.samples[1].advantage_C, [-0.25, -0.5])
    assert sum(int((b.chunk_BT >= 0).sum()) for b in step.batches) == 2 * 5


def test_what_the_system_lost_neither_teaches_nor_counts():
    step = credit.assemble([ONE_LOST, MIXED], credit.ipa(IpaHypers()), SHAPE)
    assert len(step.samples) == 2  # the survivor of the first group is equal to its baseline
    assert step.normaliser == 3 * 5


def test_grpo_gives_all_chunks_of_a_trajectory_the_same():
    step = credit.assemble([MIXED], credit.grpo(GrpoHypers(normaliser="trajectories")), SHAPE)
    np.testing.assert_allclose([s.advantage_C for s in step.samples], [[1, 1], [-1, -1]], rtol=1e-4)
    assert step.normaliser == 2


def test_a_step_in_which_nothing_teaches_has_no_batch():
    step = credit.assemble([EQUAL], credit.ipa(IpaHypers()), SHAPE)
    assert (step.batches, step.samples) == ([], [])

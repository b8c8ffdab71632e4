"""Which tokens the learner's gap is taken over, and what it is."""

import dataclasses

import numpy as np
import pytest

from ale_jax.data.packing import Sample, Shape, pack
from ale_jax.data.replay import Group
from ale_jax.learn.gap import fresh_batches, gap_limit, learner_gap
from ale_jax.model.compute import Compute
from ale_jax.records import Status
from tests.data.make_trajectories import make_trajectory, make_turn

SHAPE = Shape(rows=3, row_tokens=16, chunks_per_row=4)


def _member(number, versions, status=Status.FINISHED):
    """One turn of two policy tokens per version."""
    turns = [make_turn([1, 2], [10 * number, 20], version=version) for version in versions]
    return make_trajectory(0, number, turns, status, start_version=versions[0])


OLD, MIXED, FRESH, LOST = (
    _member(1, (6, 6)),
    _member(2, (6, 7)),
    _member(3, (7, 7)),
    _member(4, (7,), Status.SANDBOX_LOST),
)
GROUPS = [Group(0, (OLD, MIXED)), Group(1, (FRESH, LOST))]


def _packed(*trajectories):
    return pack([Sample(t.turns, np.zeros(len(t.turns)), True) for t in trajectories], SHAPE)[0]


def _shifted(batch, by):
    """As a learner would say it: token t's log-probability is by[t] larger."""
    shift_BT = np.vectorize(lambda token: by.get(int(token), 0.0))(batch.tokens_BT)
    return dataclasses.replace(batch, logp_old_BT=batch.logp_old_BT + shift_BT)


def test_only_what_these_weights_wrote_alone_is_compared():
    batch = _packed(OLD, MIXED, FRESH)
    learner = _shifted(batch, {1: 9.0, 10: 5.0, 20: -0.25, 30: 0.75})
    found = learner_gap([batch], [learner], version=7)
    assert found == pytest.approx({"learner_gap": 0.5, "learner_gap_max": 0.75})
    twice = learner_gap([batch, batch], [learner, batch], version=7)
    assert twice == pytest.approx({"learner_gap": 0.25, "learner_gap_max": 0.75})


def test_without_such_tokens_there_is_no_figure():
    batch = _packed(OLD, MIXED)
    assert learner_gap([batch], [batch], version=7) == learner_gap([], [], version=7) == {}


def test_fresh_batches_hold_valid_trajectories_of_the_version():
    (batch,) = fresh_batches(GROUPS, 7, SHAPE)
    np.testing.assert_array_equal(
        batch.tokens_BT[:, :9], [[1, 2, 30, 20] * 2 + [0], [0] * 9, [0] * 9]
    )
    assert fresh_batches(GROUPS, 8, SHAPE) == []


def test_the_limit_knows_what_is_rounded():
    assert gap_limit(Compute("float32"), int8_cache=False) == 1e-3
    assert gap_limit(Compute("bfloat16"), False) == gap_limit(Compute("float32"), True) == 1e-1

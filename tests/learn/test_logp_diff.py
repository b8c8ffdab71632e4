"""Which tokens the learner's gap is taken over, and what it is."""

import dataclasses

import numpy as np
import pytest

from ale_jax.config.learn import Shape
from ale_jax.config.model import Compute
from ale_jax.learn.step import fresh_batches, logp_diff_limit, train_rollout_logp_diff
from ale_jax.status import Status
from tests.data.make_trajectories import make_trajectory, make_turn

SHAPE = Shape(microbatch_rows=3, pack_length=12, chunks_per_pack=4)


def _member(number, versions, status=Status.FINISHED):
    """One turn of two policy tokens per version."""
    turns = [make_turn([1, 2], [10 * number, 20], version=version) for version in versions]
    return make_trajectory(0, number, turns, status, start_version=versions[0])


OLD, MIXED, FRESH, LOST = (
    _member(1, (6, 6)),
    _member(2, (6, 7)),
    _member(3, (7, 7)),
    _member(4, (7,), Status.SANDBOX_LOST),  # no verdict, but as good a witness
)
SILENT = make_trajectory(0, 5, start_version=7)


def test_only_what_these_weights_wrote_alone_is_asked():
    (batch,) = fresh_batches([OLD, MIXED, FRESH, LOST, SILENT], 7, SHAPE)
    np.testing.assert_array_equal(batch.tokens_BT[0], [1, 2, 30, 20] * 2 + [1, 2, 40, 20])
    assert not batch.segment_BT[1:].any()
    assert fresh_batches([OLD, MIXED, SILENT], 7, SHAPE) == []


def test_a_change_of_weights_within_a_turn_counts_and_what_was_given_does_not():
    turn = make_turn([1, 2], [30, 20], version=7)
    changed = dataclasses.replace(turn, version=np.array([6, 7], np.int32))
    assert fresh_batches([make_trajectory(0, 6, [changed], start_version=6)], 7, SHAPE) == []
    turns = [make_turn([1, 2], [50, 20], version=-1), turn]
    given = dataclasses.replace(make_trajectory(0, 7, turns, start_version=7), num_prefix_turns=1)
    (batch,) = fresh_batches([given], 7, SHAPE)
    np.testing.assert_array_equal(batch.tokens_BT[batch.chunk_BT >= 0], [30, 20])


def test_the_gap_is_over_policy_tokens():
    (engine,) = fresh_batches([FRESH, LOST], 7, SHAPE)
    by = {1: 9.0, 30: 0.75, 40: 0.0, 20: -0.25}  # a learner's token is so much more probable
    shift_BT = np.vectorize(lambda token: by.get(int(token), 0.0))(engine.tokens_BT)
    learner_BT = engine.logp_old_BT + shift_BT
    found = train_rollout_logp_diff([engine], [learner_BT])
    assert found == pytest.approx(
        {"train_rollout_logp_diff": 2.25 / 6, "train_rollout_logp_diff_max": 0.75}
    )
    twice = train_rollout_logp_diff([engine, engine], [learner_BT, engine.logp_old_BT])
    assert twice == pytest.approx(
        {"train_rollout_logp_diff": 2.25 / 12, "train_rollout_logp_diff_max": 0.75}
    )
    assert train_rollout_logp_diff([], []) == {}  # and not 0


def test_the_limit_knows_what_is_rounded():
    assert logp_diff_limit(Compute("float32"), eight_bits=False) == 1e-3
    assert (
        logp_diff_limit(Compute("bfloat16"), False)
        == logp_diff_limit(Compute("float32"), True)
        == 1e-1
    )

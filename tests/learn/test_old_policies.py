"""pi_old at the version that wrote each token, and pi_prox, by forward passes."""

import dataclasses

import jax
import numpy as np
import pytest

from ale_jax.config.algo import AdvantageHypers, AlgoConfig, MismatchHypers
from ale_jax.config.hardware import MeshShape
from ale_jax.config.learn import Shape
from ale_jax.config.loss import LossHypers
from ale_jax.data.packing import Sample, pack
from ale_jax.learn.old_policies import WeightHistory, fill_old_logp, generating_logp
from ale_jax.learn.scores import make_logp
from ale_jax.model.params import init_params
from ale_jax.model.sharding import make_mesh
from tests.data.make_trajectories import make_turn
from tests.model.shapes import DENSE

MESH = make_mesh(MeshShape(data=-1))
ROWS = 8
WEIGHTS = [init_params(jax.random.key(seed), DENSE) for seed in (1, 2, 3)]
ALGO = AlgoConfig(
    "test",
    1.0,
    "generating",
    AdvantageHypers("outcome", "group", "none"),
    LossHypers("decoupled_ppo", clip_low=0.2, clip_high=0.2, ratio_cap=2.0),
    MismatchHypers(),
)


@pytest.fixture(scope="module")
def logp():
    return make_logp(DENSE, MESH)


@pytest.fixture(scope="module")
def batch():
    """Turns of versions 4, 5 and 5, then of 6; weights may change within a turn."""
    turns = [make_turn([1, 2], [3, 4], version=4), make_turn([5], [6, 7, 8], version=5)]
    mixed = dataclasses.replace(turns[1], version=np.array([5, 5, 6], np.int32))
    samples = [
        Sample((turns[0], mixed), np.ones(2, np.float32)),
        Sample((make_turn([9], [10, 11], version=6),), np.ones(1, np.float32)),
    ]
    packed, rest = pack(samples, Shape(ROWS, 16, 4))
    assert not rest
    return packed


def test_each_token_is_scored_by_the_weights_that_wrote_it(batch, logp):
    found_BT = generating_logp(batch, lambda version, rows: logp(WEIGHTS[version - 4], rows))
    alone = {version: logp(params, batch) for version, params in enumerate(WEIGHTS, 4)}
    action_mask_BT = batch.chunk_BT >= 0
    assert sorted(np.unique(batch.version_BT[action_mask_BT])) == [4, 5, 6]
    for b, t in zip(*np.nonzero(action_mask_BT), strict=True):
        assert found_BT[b, t] == alone[batch.version_BT[b, t]][b, t]
    assert not found_BT[~action_mask_BT].any()
    assert not np.allclose(alone[4], alone[5])  # else it would not matter


def test_the_history_is_bounded_and_knows_when_it_is_asked_too_much(batch, logp):
    history = WeightHistory(1)
    for version, params in enumerate(WEIGHTS, 4):
        history.keep(version, params)
    assert history[6] is WEIGHTS[2] and history[5] is WEIGHTS[1]
    with pytest.raises(AssertionError, match=r"4, \[5, 6\]"):
        generating_logp(batch, lambda version, rows: logp(history[version], rows))
    with pytest.raises(AssertionError):
        history.keep(8, WEIGHTS[0])


def test_only_what_is_read_is_computed(batch, logp):
    asked = []

    def counting(version, batch):
        asked.append(version)
        return logp(WEIGHTS[version - 4], batch)

    def fill(algo):
        asked.clear()
        (filled,) = fill_old_logp([batch], algo, 6, counting)
        return filled

    every = fill(ALGO)
    assert asked == [4, 5, 6, 6]  # three versions, and the proximal
    np.testing.assert_array_equal(every.logp_prox_BT, logp(WEIGHTS[2], batch))
    assert not np.array_equal(every.logp_old_BT, batch.logp_old_BT)

    plain = dataclasses.replace(ALGO, loss=LossHypers("ppo", clip_low=0.2, clip_high=0.2))
    start = fill(dataclasses.replace(plain, old_logp="step"))
    assert asked == [6] and start.logp_prox_BT is None
    np.testing.assert_array_equal(start.logp_old_BT, logp(WEIGHTS[2], batch))

    recorded = fill(dataclasses.replace(plain, old_logp="sampler"))
    assert asked == [] and recorded.logp_old_BT is batch.logp_old_BT

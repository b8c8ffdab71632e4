"""A step's advantages are amplified as each trajectory's own rhythm says, and nothing else is."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from ale_jax.algo.rhythm import MAX_REACH, RhythmHypers
from ale_jax.data.packing import pack_all
from ale_jax.learn import rhythm as rhythm_module
from ale_jax.learn.rhythm import make_rhythm, trace
from ale_jax.model.attention_rhythm import BLOCK
from ale_jax.model.compute import FLOAT32
from ale_jax.model.params import init_params
from ale_jax.model.sharding import MeshShape, param_shardings
from tests.learn.rewarded import SHAPE, rewarded_batches, rewarded_samples
from tests.model.shapes import DENSE, MOE

KEY = jax.random.key(0)
ROWS = ("tokens_BT", "position_BT", "segment_BT", "chunk_BT")  # what the pass reads
# A horizon that the short turns here can reach.
COUPLED = RhythmHypers(credit="coupled", horizon_low=2, horizon_high=12, window=4)


def _mesh(**sizes):
    axes = dataclasses.asdict(MeshShape(data=1)) | sizes
    devices = jax.devices()[: math.prod(axes.values())]
    kinds = (AxisType.Auto,) * len(axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=kinds, devices=devices)


def _factors(before, after):
    """What advantages were multiplied by, of all batches."""
    pairs = [
        (b.advantage_BT[b.advantage_BT != 0], a.advantage_BT[b.advantage_BT != 0])
        for b, a in zip(before, after, strict=True)
    ]
    return np.concatenate([a / b for b, a in pairs])


@pytest.mark.parametrize("credit", ["local", "global", "coupled"])
def test_each_trajectory_gets_the_factor_of_its_own_trace(credit):
    params, hp = init_params(KEY, MOE), dataclasses.replace(COUPLED, credit=credit)
    samples = rewarded_samples()
    batches = pack_all(samples, SHAPE)
    stage = make_rhythm(MOE, hp, SHAPE.chunks_per_row, _mesh())
    amplified, figures = stage(params, batches, KEY)
    raised = gained = 0
    for before, after in zip(batches, amplified, strict=True):
        for sample in samples:
            own = (before.group_BT == sample.group) & (before.member_BT == sample.member)
            if not own.any():
                continue
            factor_T = trace(params, sample, MOE, hp).factor_T
            factor_T = np.where(before.advantage_BT[own] > 0, factor_T, 1.0)
            expected_T = before.advantage_BT[own] * factor_T
            np.testing.assert_allclose(after.advantage_BT[own], expected_T, rtol=1e-5)
            raised, gained = raised + (factor_T > 1).sum(), gained + (expected_T > 0).sum()
    assert 0 < raised < gained
    assert figures == {"rhythm_amplified": pytest.approx(raised / gained)}


def test_everything_else_stays():
    params, batches = init_params(KEY, MOE), rewarded_batches()
    amplified, _ = make_rhythm(MOE, COUPLED, 8, _mesh())(params, batches, KEY)
    for before, after in zip(batches, amplified, strict=True):
        for name, array in vars(before).items():
            if name != "advantage_BT" and array is not None:
                np.testing.assert_array_equal(getattr(after, name), array)
        negative = before.advantage_BT <= 0
        np.testing.assert_array_equal(after.advantage_BT[negative], before.advantage_BT[negative])


def test_without_a_gain_no_pass_is_made():
    batches = [
        dataclasses.replace(b, advantage_BT=-np.abs(b.advantage_BT)) for b in rewarded_batches()
    ]
    found, figures = make_rhythm(MOE, COUPLED, 8, _mesh())(None, batches, KEY)
    assert figures == {} and all(a is b for a, b in zip(found, batches, strict=True))


def test_the_lot_is_drawn_from_the_key_without_a_pass():
    params, batches = init_params(KEY, DENSE), rewarded_batches()
    hp = RhythmHypers(credit="random", amplification=2.0)
    stage = make_rhythm(DENSE, hp, 8, _mesh())
    drawn = [_factors(batches, stage(params, batches, key)[0]) for key in (KEY, KEY)]
    np.testing.assert_array_equal(*drawn)
    assert (drawn[0] != _factors(batches, stage(params, batches, jax.random.key(1))[0])).any()
    gained = drawn[0][np.concatenate([b.advantage_BT[b.advantage_BT != 0] for b in batches]) > 0]
    assert 0.3 < (gained == 2.0).mean() < 0.5

    def products(hp):
        rows = {name: getattr(batches[0], name) for name in ROWS}
        args = params, rows, KEY, DENSE, hp, 8, FLOAT32
        return rhythm_module._factor.lower(*args).compile().as_text().count(" dot(")

    assert products(hp) == 0 and products(COUPLED) > 0


def test_a_mesh_amplifies_as_one_device():
    params, batches = init_params(KEY, DENSE), rewarded_batches()
    expected, _ = make_rhythm(DENSE, COUPLED, 8, _mesh())(params, batches, KEY)
    mesh = _mesh(data=2, tensor=2)
    sharded = jax.device_put(params, param_shardings(DENSE, mesh))
    found, _ = make_rhythm(DENSE, COUPLED, 8, mesh)(sharded, batches, KEY)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.advantage_BT, other.advantage_BT, rtol=1e-6)


def test_a_trace_says_what_was_measured_of_each_token():
    sample = rewarded_samples()[0]
    found = trace(init_params(KEY, MOE), sample, MOE, COUPLED)
    assert {array.shape for array in vars(found).values()} == {(sample.num_tokens,)}
    written = found.chunk_T >= 0
    assert written.sum() == sum(len(turn.action_ids) for turn in sample.turns)
    assert 0 < found.waad_T[written].max() <= COUPLED.window
    assert 0 < found.fai_T.max() < 1
    assert (found.factor_T[~written] == 1).all() and found.factor_T.max() > 1
    with pytest.raises(ValueError, match="without turns has no rhythm"):
        trace({}, dataclasses.replace(sample, turns=(), advantage_C=np.zeros(0)), MOE, COUPLED)


def test_what_may_be_asked_for_can_be_measured():
    assert MAX_REACH == BLOCK

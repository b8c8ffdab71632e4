"""A step's advantages are amplified as each trajectory's own attention says, and nothing
else is."""

import dataclasses

import jax
import numpy as np
import pytest

from ale_jax.config.attention_credit import MAX_REACH, AttentionCreditHypers
from ale_jax.config.model import FLOAT32
from ale_jax.data.packing import pack_all
from ale_jax.learn import attention_credit as attention_credit_module
from ale_jax.learn.attention_credit import make_attention_credit, trace
from ale_jax.model.attention_credit import BLOCK
from ale_jax.model.params import init_params
from ale_jax.model.sharding import param_shardings
from tests.learn.rewarded import SHAPE, rewarded_batches, rewarded_samples
from tests.model.meshes import mesh_of
from tests.model.shapes import DENSE, MOE, changed

KEY = jax.random.key(0)
ROWS = ("tokens_BT", "position_BT", "segment_BT", "chunk_BT")  # what the pass reads
# A horizon that the short turns here can reach.
COUPLED = AttentionCreditHypers(credit="coupled", horizon_low=2, horizon_high=12, window=4)


def _factors(before, after):
    """What advantages were multiplied by, of all batches."""
    pairs = [
        (b.advantage_BT[b.advantage_BT != 0], a.advantage_BT[b.advantage_BT != 0])
        for b, a in zip(before, after, strict=True)
    ]
    return np.concatenate([a / b for b, a in pairs])


def _by_trajectory(before, after):
    """The same of each token of (group, member), 1 where there is no advantage."""
    factors = {}
    for b, a in zip(before, after, strict=True):
        some_BT = b.advantage_BT != 0
        factor_BT = np.where(some_BT, a.advantage_BT / np.where(some_BT, b.advantage_BT, 1.0), 1.0)
        for group, member in set(zip(b.group_BT.flat, b.member_BT.flat, strict=True)):
            own_BT = (b.group_BT == group) & (b.member_BT == member) & (b.segment_BT > 0)
            if own_BT.any():
                factors[group, member] = factor_BT[own_BT]
    return factors


@pytest.mark.heavy
@pytest.mark.parametrize("credit", ["local", "global", "coupled"])
def test_each_trajectory_gets_the_factor_of_its_own_trace(credit):
    params, hp = init_params(KEY, MOE), dataclasses.replace(COUPLED, credit=credit)
    samples = rewarded_samples(groups=2)
    batches = pack_all(samples, SHAPE)
    stage = make_attention_credit(MOE, hp, SHAPE.chunks_per_pack, mesh_of())
    amplified, figures = stage(params, batches, KEY)
    factors = _by_trajectory(batches, amplified)
    for sample in samples:
        expected_T = trace(params, sample, MOE, hp).factor_T if sample.advantage_C[0] > 0 else 1.0
        np.testing.assert_allclose(factors[sample.group, sample.member], expected_T, rtol=1e-5)
    raised = sum((factor_T > 1).sum() for factor_T in factors.values())
    gained = sum(len(turn.action_ids) for s in samples if s.advantage_C[0] > 0 for turn in s.turns)
    assert 0 < raised < gained
    assert figures == {"amplified_by_attention": pytest.approx(raised / gained)}


@pytest.mark.heavy
def test_with_router_replay_the_samplers_experts_are_taken():
    # Three layers, of which the second is looked at: it depends on the experts of the first.
    policy = changed(MOE, num_layers=3)
    hp = dataclasses.replace(COUPLED, credit="local")
    params, draw = init_params(KEY, policy), np.random.default_rng(0)
    plain = rewarded_samples(groups=1)
    shapes = [(sample.num_tokens, 3, MOE.experts_per_token) for sample in plain]
    replayed = [
        dataclasses.replace(sample, expert_TLK=draw.integers(0, 8, shape).astype(np.int16))
        for sample, shape in zip(plain, shapes, strict=True)
    ]
    factors = {}
    for name, samples in (("plain", plain), ("replayed", replayed)):
        batches = pack_all(samples, SHAPE)
        amplified, _ = make_attention_credit(policy, hp, 8, mesh_of())(params, batches, KEY)
        factors[name] = _by_trajectory(batches, amplified)
        for sample in samples:
            if sample.advantage_C[0] > 0:
                found_T = factors[name][sample.group, sample.member]
                trace_T = trace(params, sample, policy, hp).factor_T
                np.testing.assert_allclose(found_T, trace_T, rtol=1e-5)
    assert any(
        (factors["plain"][key] != factors["replayed"][key]).any() for key in factors["plain"]
    )


def test_everything_else_stays():
    params, batches = init_params(KEY, MOE), rewarded_batches()
    amplified, _ = make_attention_credit(MOE, COUPLED, 8, mesh_of())(params, batches, KEY)
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
    found, figures = make_attention_credit(MOE, COUPLED, 8, mesh_of())(None, batches, KEY)
    assert figures == {} and all(a is b for a, b in zip(found, batches, strict=True))


def test_the_lot_is_drawn_from_the_key_without_a_pass():
    params, batches = init_params(KEY, DENSE), rewarded_batches()
    hp = AttentionCreditHypers(credit="random", amplification=2.0)
    stage = make_attention_credit(DENSE, hp, 8, mesh_of())
    drawn = [_factors(batches, stage(params, batches, key)[0]) for key in (KEY, KEY)]
    np.testing.assert_array_equal(*drawn)
    assert (drawn[0] != _factors(batches, stage(params, batches, jax.random.key(1))[0])).any()
    gained = drawn[0][np.concatenate([b.advantage_BT[b.advantage_BT != 0] for b in batches]) > 0]
    assert 0.3 < (gained == 2.0).mean() < 0.5

    def products(hp):
        rows = {name: getattr(batches[0], name) for name in ROWS}
        args = params, rows, KEY, DENSE, hp, 8, FLOAT32
        return attention_credit_module._factor.lower(*args).compile().as_text().count(" dot(")

    assert products(hp) == 0 and products(COUPLED) > 0


def test_a_mesh_amplifies_as_one_device():
    params, batches = init_params(KEY, DENSE), rewarded_batches()
    expected, _ = make_attention_credit(DENSE, COUPLED, 8, mesh_of())(params, batches, KEY)
    mesh = mesh_of(data=2, tensor=2)
    sharded = jax.device_put(params, param_shardings(DENSE, mesh))
    found, _ = make_attention_credit(DENSE, COUPLED, 8, mesh)(sharded, batches, KEY)
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
    with pytest.raises(ValueError, match="without turns has no attention statistics"):
        trace({}, dataclasses.replace(sample, turns=(), advantage_C=np.zeros(0)), MOE, COUPLED)


def test_what_may_be_asked_for_can_be_measured():
    assert MAX_REACH == BLOCK

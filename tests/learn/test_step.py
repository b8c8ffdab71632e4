"""One step is one step: however it is cut into microbatches, and on however many devices."""

import dataclasses
import functools
from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from ale_jax.algo.losses import count_loss_denominator, sft_loss
from ale_jax.config.hardware import MeshShape
from ale_jax.config.learn import Shape
from ale_jax.config.optimizer import OptimizerHypers
from ale_jax.data.packing import demonstration, pack_all
from ale_jax.learn.rows import to_device
from ale_jax.learn.scores import make_logp
from ale_jax.learn.state import begin, init_state, make_optimizer
from ale_jax.learn.step import (
    ModelSpec,
    UpdateStep,
    forward,
    gradient_function,
    make_train_step,
)
from ale_jax.model.moe import balancing_loss
from ale_jax.model.params import init_params
from ale_jax.model.sharding import check_rows, make_mesh
from tests.model.alone import logp_after
from tests.model.meshes import mesh_of
from tests.model.shapes import DENSE, MOE, changed

HYPERS = OptimizerHypers(
    name="adamw",
    learning_rate=1e-2,
    muon_learning_rate=1e-2,
    b1=0.9,
    b2=0.95,
    weight_decay=0.1,
    clip_norm=1.0,
)
MUON = dataclasses.replace(HYPERS, name="muon")
ADAFACTOR = dataclasses.replace(HYPERS, name="adafactor")


def sample_transcripts(count):
    rng = np.random.default_rng(0)

    def draw(low, high):
        return rng.integers(4, 96, rng.integers(low, high)).astype(np.int32)

    return [demonstration([(draw(3, 9), draw(2, 7)) for _ in range(2)]) for _ in range(count)]


def _with_experts(sample, shape):
    """As if recorded: any experts, and none for the last token."""
    rng = np.random.default_rng(sample.num_tokens)
    size = (sample.num_tokens, shape.num_moe_layers, shape.experts_per_token)
    first_TL1 = rng.integers(0, shape.num_experts, (*size[:2], 1))
    expert_TLK = (first_TL1 + np.arange(size[2])) % shape.num_experts
    expert_TLK[-1] = -1
    return dataclasses.replace(sample, expert_TLK=expert_TLK.astype(np.int16))


def transcript_loss(scores, arrays, loss_denominator):
    return sft_loss(scores.logp_BT, arrays["chunk_BT"], loss_denominator)


def _train(shape, mesh, rows, steps, hypers=HYPERS, balance_weight=0.0, samples=16, replay=False):
    optimizer = make_optimizer(hypers, shape)
    state = init_state(jax.random.key(0), shape, optimizer, mesh)
    step = make_train_step(
        ModelSpec(shape, mesh, balance_weight=balance_weight), optimizer, transcript_loss
    )
    samples = sample_transcripts(samples)
    if replay:
        samples = [_with_experts(sample, shape) for sample in samples]
    batches = pack_all(samples, Shape(rows, 64, 8))
    losses = []
    for _ in range(steps):
        state, sums, _ = step(state, batches, count_loss_denominator(batches, "tokens"))
        losses.append(float(sums["loss"]))
    return losses, jax.device_get(state.opt_state), len(batches)


def _assert_same_gradients(one, other):
    """Compares the optimizers' mean gradients. Not the weights: AdamW divides by the gradient's own
    size, so a weight whose gradient is mere rounding moves by any part of the learning rate."""
    means = [optax.tree_utils.tree_get(each, "mu") for each in (one, other)]
    largest = max(abs(leaf).max() for leaf in jax.tree.leaves(means))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4 * largest), *means)


ONE = {"data": 8}  # rows over all devices, every weight whole on each
ONE_LAYER = changed(MOE, num_layers=1)


@pytest.mark.heavy
@pytest.mark.parametrize("hypers", [HYPERS, MUON, ADAFACTOR], ids=lambda h: h.name)
def test_loss_falls(hypers):
    losses, _, _ = _train(ONE_LAYER, mesh_of(), rows=8, steps=12, hypers=hypers)
    assert losses[0] > 4
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.heavy
def test_microbatches_change_nothing_but_rounding():
    whole, optimizer, count = _train(ONE_LAYER, mesh_of(), rows=8, steps=2, samples=18)
    cut, optimizer_cut, count_cut = _train(ONE_LAYER, mesh_of(), rows=2, steps=2, samples=18)
    assert count == 1 and count_cut > 2
    np.testing.assert_allclose(whole, cut, rtol=1e-5)
    _assert_same_gradients(optimizer, optimizer_cut)


@functools.cache
def _on_one_device(shape):
    return _train(shape, mesh_of(), rows=8, steps=2, balance_weight=1e-2, replay=shape.is_moe)


# Every axis with others; with and without experts, and a head of its own.
MESHES = [
    (ONE_LAYER, {"data": 2, "expert": 2, "tensor": 2}),
    (ONE_LAYER, {"fsdp": 2, "context": 4}),
    (changed(DENSE, num_layers=1), {"data": 2, "tensor": 2, "fsdp": 2}),
]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("shape", "axes"), MESHES, ids=lambda x: str(x) if isinstance(x, dict) else None
)
def test_a_mesh_trains_as_one_device(shape, axes):
    """With experts told to most tokens, where there are some."""
    expected, optimizer, _ = _on_one_device(shape)
    mesh, replay = mesh_of(**axes), shape.is_moe
    losses, sharded_optimizer, _ = _train(
        shape, mesh, rows=8, steps=2, balance_weight=1e-2, replay=replay
    )
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    _assert_same_gradients(optimizer, sharded_optimizer)


@pytest.mark.heavy
def test_the_gradient_holds_the_routers_balance_by_its_weight_and_the_microbatchs_share():
    shape, mesh = ONE_LAYER, mesh_of()
    params = init_params(jax.random.key(0), shape)
    (batch,) = pack_all(sample_transcripts(4), Shape(4, 64, 8))
    arrays = to_device(batch, mesh)

    def nothing(scores, arrays, loss_denominator):
        return 0.0 * scores.logp_BT.sum(), {}

    def balance(params):
        scores, router = forward(params, arrays, shape)
        return balancing_loss(router, shape), scores

    gradient = gradient_function(ModelSpec(shape, mesh, balance_weight=0.5), nothing)
    (value, scores), expected = jax.jit(jax.value_and_grad(balance, has_aux=True))(params)
    with jax.set_mesh(mesh):
        grads, sums, _ = jax.jit(gradient)(params, params, arrays, 1.0, 0.25)
    np.testing.assert_allclose(sums["balance"], 0.25 * value, rtol=1e-5)
    written_BT = batch.chunk_BT >= 0
    np.testing.assert_allclose(sums["entropy"], scores.entropy_BT[written_BT].sum(), rtol=1e-5)
    assert np.abs(expected["layers"][0]["router_DE"]).max() > 1e-3
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y / 8, atol=1e-6), grads, expected)


def test_what_is_computed_per_microbatch_is_averaged_over_them():
    mesh, optimizer = mesh_of(), optax.sgd(1.0)
    everywhere = NamedSharding(mesh, PartitionSpec())
    weights = {"layers": [{"w_D": jax.device_put(np.zeros(3, np.float32), everywhere)}]}

    def gradient_of(moved, params, arrays, loss_denominator, share):
        return moved, {"loss": share * arrays["balance_BT"].max()}, None

    step = UpdateStep(gradient_of, optimizer, weights, mesh)
    batches = [SimpleNamespace(balance_BT=np.full((8, 1), x, np.float32)) for x in (3, 1, 5)]
    _, sums, _ = step(begin(weights, optimizer, mesh), batches, 1.0)
    np.testing.assert_allclose(sums["loss"], 3.0, rtol=1e-6)


@pytest.mark.heavy
def test_a_microbatch_alone_gives_to_the_bit_what_it_gives_added_to_zeros():
    mesh, shape = mesh_of(), changed(DENSE, num_layers=1)
    optimizer = make_optimizer(HYPERS, shape)
    batch, *_ = pack_all(sample_transcripts(8), Shape(8, 64, 8))
    found, compiled = [], []
    for before in ((), ([batch, batch],)):
        step = make_train_step(ModelSpec(shape, mesh), optimizer, transcript_loss)
        for batches in (*before, [batch]):
            state = init_state(jax.random.key(0), shape, optimizer, mesh)
            state, sums, _ = step(state, batches, 50.0)
        found.append(jax.device_get((state, sums)))
        compiled.append((step.gradient._cache_size(), step.add_gradient._cache_size()))
    assert compiled == [(1, 0), (0, 1)]
    jax.tree.map(np.testing.assert_array_equal, *found)


@pytest.mark.heavy
def test_logp_says_what_the_logits_say():
    mesh = mesh_of(**ONE)
    params = init_state(jax.random.key(0), MOE, make_optimizer(HYPERS, MOE), mesh).params
    samples = sample_transcripts(3)
    logp_of = make_logp(MOE, mesh)
    for sample in samples:
        (batch,) = pack_all([sample], Shape(8, 64, 8))
        score = logp_of(params, batch)[batch.chunk_BT >= 0]
        ids = np.concatenate([x for t in sample.turns for x in (t.prompt_ids, t.action_ids)])
        flags = [
            f for t in sample.turns for f in (0,) * len(t.prompt_ids) + (1,) * len(t.action_ids)
        ]
        logp_TV = np.asarray(logp_after(params, ids))
        expected = [logp_TV[i - 1, ids[i]] for i in np.flatnonzero(flags)]
        np.testing.assert_allclose(score, expected, atol=1e-5)


def test_rows_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match=r"batch rows 12 must be a multiple of .* 8: .* 16"):
        check_rows(12, mesh_of(**ONE))


def test_a_mesh_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="there are 8"):
        make_mesh(MeshShape(data=3, tensor=2))

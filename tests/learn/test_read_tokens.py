"""What is computed of the tokens that a loss reads alone is what is computed of all."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.config.algo import AlgoConfig
from ale_jax.config.loss import LossHypers
from ale_jax.config.model import Compute
from ale_jax.data.reading import read_tokens
from ale_jax.learn.critics import ValueBatch, critic_gradient
from ale_jax.learn.rows import to_device
from ale_jax.learn.step import ModelSpec, gradient_function, make_loss
from ale_jax.model.guides import SamplingMasks, num_words
from ale_jax.model.params import init_params, init_table
from ale_jax.model.policy import Asked, score_tokens, value_table
from ale_jax.model.reading import read_here
from benchmarks.full_rows import GRPO
from tests.learn.rewarded import rewarded_batches
from tests.model.meshes import mesh_of
from tests.model.shapes import DENSE, MIXED, MOE, changed

ALGO: AlgoConfig = dataclasses.replace(
    GRPO, loss=LossHypers("ppo", clip_low=0.2, clip_high=0.2, entropy_weight=0.1)
)
ONE_DENSE, ONE_MOE = (changed(shape, num_layers=1) for shape in (DENSE, MOE))


def _batch(shape=DENSE):
    """Eight rows; with recorded experts of a token where `shape` has experts."""
    batch, *_ = rewarded_batches()
    assert batch.read_BR is not None and batch.read_BR.shape[1] < batch.tokens_BT.shape[1]
    if not shape.is_moe:
        return batch
    size = (*batch.tokens_BT.shape, shape.num_moe_layers, shape.experts_per_token)
    expert_BTLK = np.full(size, -1, np.int16)
    expert_BTLK[:, 3:20] = np.arange(shape.experts_per_token)
    return dataclasses.replace(batch, expert_BTLK=expert_BTLK)


def _close(found, expected):
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6 * largest), found, expected
    )


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("shape", "sizes", "remat"),
    [
        (DENSE, {}, "layers"),
        (MIXED, {}, "none"),
        (ONE_DENSE, {"data": 2, "fsdp": 2, "tensor": 2}, "none"),
        (ONE_MOE, {"data": 2, "expert": 2, "tensor": 2}, "none"),
        (ONE_DENSE, {"fsdp": 2, "context": 4}, "none"),
    ],
    ids=["dense", "experts", "mesh", "experts on a mesh", "rows on a mesh"],
)
def test_gradients_and_figures_are_those_of_all_tokens(shape, sizes, remat):
    mesh, batch = mesh_of(**sizes), _batch(shape)
    model = ModelSpec(shape, mesh, Compute(remat=remat), balance_weight=0.1)
    params = init_params(jax.random.key(0), shape)
    gradient = jax.jit(gradient_function(model, make_loss(ALGO, 8)))

    def found(batch):
        with jax.set_mesh(mesh):
            return jax.device_get(gradient(params, params, to_device(batch, mesh), 50.0, 0.5))

    (grads, sums, tokens), (expected, expected_sums, of_all) = map(
        found, (batch, dataclasses.replace(batch, read_BR=None))
    )
    _close(grads, expected)
    _close(sums, expected_sums)
    written_BT = batch.chunk_BT >= 0
    _close([x_BT[written_BT] for x_BT in tokens], [x_BT[written_BT] for x_BT in of_all])
    elsewhere_BT = np.ones(written_BT.shape, bool)
    np.put_along_axis(elsewhere_BT, batch.read_BR, False, axis=1)
    assert (tokens.logp_BT[elsewhere_BT] == 0).all() == (sizes.get("context", 1) == 1)


@pytest.mark.heavy
def test_critics_learn_the_same_from_the_values_that_are_read():
    mesh, batch = mesh_of(), _batch()
    params = init_table(jax.random.key(0), value_table(DENSE))
    params["value_D"] = jax.random.normal(jax.random.key(1), params["value_D"].shape)
    gradient = jax.jit(critic_gradient(ModelSpec(DENSE, mesh)))
    own_BT = batch.chunk_BT >= 0
    rows = batch.tokens_BT, batch.position_BT, batch.segment_BT
    of_read, of_all = (
        gradient(
            params, params, to_device(ValueBatch(*rows, read, batch.reward_BT, own_BT), mesh), 9, 1
        )
        for read in (batch.read_BR, None)
    )
    _close(of_read, of_all)


@pytest.mark.parametrize("top", [0, 3])
def test_scores_are_those_of_all_tokens(top):
    B, T, D, V = 3, 50, 8, 96
    draw = np.random.default_rng(0)
    (read_BR,) = read_tokens([draw.random((B, T)) < 0.3])
    tokens_BT = draw.integers(0, V, (B, T)).astype(np.int32)
    position_BT = np.tile(np.arange(T, dtype=np.int32) % 20, (B, 1))
    hidden_BTD = draw.normal(size=(B, T, D)).astype(np.float32)
    masks = SamplingMasks(
        draw.integers(-2, 4, (B, T)).astype(np.int16),
        draw.integers(-(2**31), 2**31, (B, 4, num_words(V))).astype(np.int32),
    )
    temperature_BT = draw.uniform(0.5, 2.0, (B, T)).astype(np.float32)
    top_id_BTk = None if top else draw.integers(0, V, (B, T, 2)).astype(np.int32)
    asked = Asked(masks, temperature_BT, top_id_BTk, top)
    head = {"head_DV": draw.normal(size=(D, V)).astype(np.float32)}
    score = functools.partial(score_tokens, head, tokens_BT, position_BT=position_BT, asked=asked)
    every = jax.device_get(score(hidden_BTD=hidden_BTD))
    before_BRD = np.take_along_axis(hidden_BTD, read_BR[..., None] - 1, axis=1)
    found = jax.device_get(score(hidden_BTD=before_BRD, read_BR=jnp.asarray(read_BR)))
    is_read_BT = np.zeros((B, T), bool)
    np.put_along_axis(is_read_BT, read_BR, True, axis=1)
    for of_read, of_all in zip(found, every, strict=True):
        np.testing.assert_allclose(of_read[is_read_BT], of_all[is_read_BT], rtol=1e-5, atol=1e-6)
        assert not of_read[~is_read_BT].any() and of_all[~is_read_BT].any()


def test_few_sizes_hold_what_is_read_and_other_tokens_once_each():
    draw, T, sizes = np.random.default_rng(0), 40, set()
    for share in np.linspace(0.0, 1.0, 60):
        read = [draw.random((4, T)) < share for _ in range(2)]
        found = read_tokens(read)
        if found[0] is None:
            sizes.add(T)
            continue
        assert found[0].shape == found[1].shape
        sizes.add(found[0].shape[1])
        for read_R, read_T in zip(np.concatenate(found), np.concatenate(read), strict=True):
            assert read_R[0] > 0 and (np.diff(read_R) > 0).all()
            assert set(np.flatnonzero(read_T[1:]) + 1) <= set(read_R.tolist())
    assert sizes == set(range(5, T + 1, 5))


def test_all_tokens_are_computed_where_the_mesh_divides_rows():
    with jax.set_mesh(mesh_of(fsdp=2, context=4)):
        assert read_here(jnp.ones((2, 2), int)) is None


def test_an_observation_loss_refuses_batches_that_leave_observations_out():
    observing = dataclasses.replace(ALGO, loss=LossHypers("vanilla", observation_weight=0.1))
    with pytest.raises(AssertionError, match="observations are read"):
        make_loss(observing, 8)(None, {"read_BR": None}, 1.0)

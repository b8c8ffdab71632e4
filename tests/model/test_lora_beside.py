"""Adapters are computed beside their maps, in every program, and move without the weights."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.config.hardware import MeshShape
from ale_jax.config.model import ALL_LINEAR, FLOAT32, SAME, Compute, LoraShape
from ale_jax.learn.state import with_new_adapters
from ale_jax.model.compute import Quantised
from ale_jax.model.lora import merged, trained, with_trained
from ale_jax.model.params import init_params
from ale_jax.model.policy import hidden_states
from ale_jax.model.replicas import SamplingCopy, engine_meshes
from ale_jax.model.sampling_weights import sampling_weights
from ale_jax.model.sharding import make_mesh, param_shardings
from tests.model.shapes import MIXED, changed

LORA = LoraShape(rank=3, alpha=6.0, targets=(ALL_LINEAR,))
SHAPE = changed(MIXED, num_kv_heads=1)  # so that no map is as wide as it is long
MESH = MeshShape(data=2, expert=2, tensor=1, fsdp=2)
TOKENS = 128  # of a row: so many that experts are dispatched by capacity
TOKENS_BT = np.random.default_rng(0).integers(0, 96, (8, TOKENS))


def adapted(mesh):
    """Weights with adapters that change something, on a mesh."""
    params = jax.device_put(init_params(jax.random.key(0), SHAPE), param_shardings(SHAPE, mesh))
    params = with_new_adapters(jax.random.key(1), params, SHAPE, LORA, mesh)
    return with_trained(params, jax.tree.map(lambda x: x + 0.02, trained(params)))


def _loss(moved, params, tokens_BT, through):
    weights = through(with_trained(params, moved))
    position_BT = jnp.broadcast_to(jnp.arange(TOKENS), tokens_BT.shape)
    hidden_BTD, _ = hidden_states(
        weights, tokens_BT, position_BT, jnp.ones_like(tokens_BT), SHAPE, Compute("float32")
    )
    by_BTD = jnp.sin(jnp.arange(hidden_BTD.size)).reshape(hidden_BTD.shape)
    return (hidden_BTD * by_BTD).sum(), hidden_BTD


def beside(params):
    return params


def _program(params, tokens_BT, through):
    graded = jax.jit(jax.grad(_loss, has_aux=True), static_argnums=3)
    return graded.lower(trained(params), params, tokens_BT, through).compile()


@pytest.mark.heavy
@pytest.mark.parametrize("shape", [MeshShape(data=8), MESH], ids=["data", "experts and fsdp"])
def test_values_and_gradients_are_those_of_merged_weights(shape):
    mesh = make_mesh(shape)
    params = adapted(mesh)
    with jax.set_mesh(mesh):
        found, expected = (
            _program(params, TOKENS_BT, through)(trained(params), params, TOKENS_BT)
            for through in (beside, merged)
        )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * (1 + np.abs(b).max())),
        *(found, expected),
    )


def _products(program):
    """The sizes of all that a program computes by products."""
    found = re.findall(r"= \w+\[([\d,]*)\]\S* dot\(", program.as_text())
    return {tuple(map(int, size.split(","))) for size in found if size}


@pytest.mark.heavy
def test_no_product_of_a_step_has_the_size_of_a_weight():
    """Neither W + A B, nor a gradient of W."""
    params = adapted(make_mesh(MeshShape(data=8)))
    params = jax.device_put(params, jax.devices()[0])
    sizes = {(32, 64), (32, 16), (64, 32), (32, 48), (48, 32), (8, 32, 24), (8, 24, 32)}
    row = TOKENS_BT[:1]
    assert not sizes & _products(_program(params, row, beside))
    assert sizes <= _products(_program(params, row, merged)), "the pattern finds them"


@pytest.mark.parametrize("stored_as", [SAME, "int8"])
@pytest.mark.parametrize(("devices", "apart"), [(0, 0), (2, 0), (2, 4)])
def test_only_adapters_move_when_weights_are_published(stored_as, devices, apart):
    """apart: devices of the engines alone."""
    mesh = make_mesh(MeshShape(expert=2, fsdp=2), jax.devices()[: 8 - apart])
    params = adapted(mesh)
    meshes = engine_meshes(mesh, devices, apart)
    copy = SamplingCopy(SHAPE, FLOAT32, mesh, stored_as, meshes)
    before = copy(params)
    later = with_trained(params, jax.tree.map(lambda x: 2 * x, trained(params)))
    after = copy(later)
    expected = jax.device_get(sampling_weights(jax.device_get(later), SHAPE, FLOAT32))
    for old, new, own in zip(before, after, meshes, strict=True):
        moved = new.pop("adapters")
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(moved), expected["adapters"])
        assert all(x.sharding.device_set == set(own.devices.flat) for x in jax.tree.leaves(moved))
        assert moved[1]["up_EDF"]["b"].sharding.shard_shape((8, 3, 24)) == (4, 3, 24)
        old.pop("adapters")
        assert all(a is b for a, b in zip(*map(jax.tree.leaves, (old, new)), strict=True))
        assert isinstance(new["layers"][0]["q_DNH"], Quantised) == (stored_as == "int8")
    other = jax.tree.map(lambda x: x + 1, params)
    again = copy(other)[0]["final_norm_D"]
    np.testing.assert_array_equal(again, other["final_norm_D"]), "other weights are copied"

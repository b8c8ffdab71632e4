"""A dense policy with experts in it computes what it did; then the experts part."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.config.hardware import MeshShape
from ale_jax.model.params import is_param, param_table
from ale_jax.model.policy import hidden_states, logits
from ale_jax.model.sharding import make_mesh, param_shardings
from ale_jax.model.weights.convert import upcycle, upcycled_shape
from tests.model.shapes import MOE, QWEN2, changed
from tests.model.weights.families import random_params

DENSE = changed(QWEN2, num_layers=3)
SPARSE = upcycled_shape(DENSE, num_experts=4, experts_per_token=2, dense_layers=(1,))
TOKENS_BT = np.random.default_rng(0).integers(0, 96, (2, 65)).astype(np.int32)


@pytest.fixture(scope="module")
def dense():
    return random_params(DENSE)


def _logits(params, shape):
    position_BT = jnp.tile(jnp.arange(65), (2, 1))
    ones_BT = jnp.ones_like(TOKENS_BT)
    return logits(params, hidden_states(params, TOKENS_BT, position_BT, ones_BT, shape)[0])


@pytest.mark.heavy
def test_the_function_is_unchanged_and_the_experts_part():
    shape = changed(QWEN2, num_layers=1)
    mixture = upcycled_shape(shape, num_experts=4, experts_per_token=2)
    dense = random_params(shape)
    sparse = upcycle(dense, shape, mixture, jax.random.key(1))
    shapes = jax.tree.map(lambda param: param.shape, param_table(mixture), is_leaf=is_param)
    assert jax.tree.map(jnp.shape, sparse) == shapes

    @jax.jit
    @partial(jax.grad, has_aux=True)
    def gradient(sparse):
        after = _logits(sparse, mixture)
        return -jax.nn.log_softmax(after)[..., 0].mean(), (_logits(dense, shape), after)

    grads, (before, after) = gradient(sparse)
    assert np.abs(before).max() > 1
    np.testing.assert_allclose(after, before, atol=1e-5, rtol=0)
    (layer,) = grads["layers"]
    for name in ("gate_EDF", "up_EDF", "down_EFD"):
        first, second = layer[name][0], layer[name][1]
        assert np.abs(first - second).max() > 0.1 * np.abs(first).max() > 0
    assert np.abs(layer["router_DE"]).max() < 1e-6  # of equal experts none is preferred


def test_layers_that_stay_dense_and_other_weights_are_not_copied(dense):
    sparse = upcycle(dense, DENSE, SPARSE, jax.random.key(1))
    assert sparse["embed_VD"] is dense["embed_VD"]
    assert sparse["layers"][1] is dense["layers"][1]
    assert sparse["layers"][2]["q_DNH"] is dense["layers"][2]["q_DNH"]
    routers = [sparse["layers"][i]["router_DE"] for i in (0, 2)]
    assert np.abs(routers[0] - routers[1]).max() > 0
    again = upcycle(dense, DENSE, SPARSE, jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, sparse, again)


def test_experts_are_made_where_they_belong(dense):
    shardings = param_shardings(SPARSE, make_mesh(MeshShape(fsdp=2, expert=2, tensor=2)))
    sparse = upcycle(dense, DENSE, SPARSE, jax.random.key(1), shardings)
    gate_EDF = sparse["layers"][2]["gate_EDF"]
    assert gate_EDF.sharding == shardings["layers"][2]["gate_EDF"]
    assert {shard.data.shape for shard in gate_EDF.addressable_shards} == {(2, 16, 24)}
    np.testing.assert_array_equal(gate_EDF[3], dense["layers"][2]["gate_DF"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 64}, "not an upcycled shape of this policy: width 64 should be 32"),
        ({"expert_width": 24}, "expert_width 24 should be 48"),
        ({"norm_topk_prob": False}, "norm_topk_prob False should be True"),
        ({"num_experts": 0}, "num_experts 0 must be at least 1"),
    ],
    ids=str,
)
def test_shapes_that_do_not_fit_are_refused(change, message, dense):
    with pytest.raises(ValueError, match=message):
        upcycle(dense, DENSE, changed(SPARSE, **change), jax.random.key(1))


def test_a_mixture_is_not_upcycled():
    with pytest.raises(
        ValueError, match="the policy has 8 experts: only dense policies can be upcycled"
    ):
        upcycled_shape(MOE, num_experts=16, experts_per_token=2)

"""The kernel of accelerators computes what all experts do, and reads the chosen ones alone."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.model.capacity_dispatch import Weights, all_experts, by_kernel
from ale_jax.model.chosen_product import MOST_TOKENS, chosen_product, has_kernel
from ale_jax.model.compute import Adapted, quantise
from tests.model.shapes import CLAMPED, with_biases
from tests.rows import each_row

E, D, F, TOKENS, K = 8, 128, 256, 5, 2
keys = functools.partial(jax.random.split, jax.random.key(0))
WEIGHTS = Weights(
    *(
        jax.random.normal(key, size) / 8
        for key, size in zip(keys(3), ((E, D, F), (E, D, F), (E, F, D)), strict=True)
    )
)
X_TD = jax.random.normal(jax.random.key(1), (TOKENS, D))
CHOSEN = 2, 5, 6
EXPERT_TK = jnp.array([[2, 5], [5, 6], [2, 6], [6, 5], [2, E]])  # expert E is none
WEIGHT_TK = jax.random.uniform(jax.random.key(2), (TOKENS, K))
IS_CHOSEN_E = jnp.isin(jnp.arange(E), jnp.array(CHOSEN))
PLATFORMS = "gpu", "tpu"


def _plain(weights):
    return weights


def _adapted(weights):
    def beside(weight, key):
        _, inner, outer = weight.shape
        a = jax.random.normal(key, (E, inner, 4), weight.dtype) / 8
        return Adapted(weight, a, jax.random.normal(key, (E, 4, outer), weight.dtype) / 8)

    maps = map(beside, weights[:3], keys(3))
    return Weights(*maps, *weights[3:])


def _quantised(weights):
    return Weights(*(quantise(each, (1,), "int8") for each in weights[:3]), *weights[3:])


def _poisoned(weights):
    """NaN in what the experts that nobody chose have."""
    poison = jax.tree.map(
        lambda x: jnp.where(IS_CHOSEN_E.reshape(-1, 1, 1), x, jnp.nan), weights[:3]
    )
    return weights._replace(gate=poison[0], up=poison[1], down=poison[2])


def _by_kernel(weights, gate, platform):
    weight_ET = jnp.einsum("tk,tke->et", WEIGHT_TK, jax.nn.one_hot(EXPERT_TK, E))
    return by_kernel(weights, X_TD, weight_ET, IS_CHOSEN_E, gate, platform, interpret=True)


@pytest.mark.parametrize("platform", PLATFORMS)
@each_row("form, gate", [(_plain, "silu"), (_adapted, "silu"), (_quantised, CLAMPED)])
def test_it_computes_what_all_experts_do(form, gate, platform):
    weights = form(WEIGHTS if gate == "silu" else with_biases(WEIGHTS))
    expected = all_experts(weights.loaded(X_TD.dtype), X_TD, WEIGHT_TK, EXPERT_TK, gate)
    found = _by_kernel(weights, gate, platform)
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_no_weight_of_an_expert_that_nobody_chose_reaches_the_sum(platform):
    found = _by_kernel(_poisoned(WEIGHTS), "silu", platform)
    np.testing.assert_array_equal(found, _by_kernel(WEIGHTS, "silu", platform))
    assert jnp.isfinite(found).all()


@pytest.mark.parametrize("rows", [1, E])
@pytest.mark.parametrize("form", ["bfloat16", "int8"])
def test_a_tpu_copies_the_blocks_of_chosen_experts_alone(form, rows):
    """Blocks are copied where a step of the grid names another one than the step before."""
    weight = jax.random.normal(jax.random.key(0), (E, 2048, 3072)).astype(form)
    shape = jax.ShapeDtypeStruct((rows, TOKENS, 2048), jnp.bfloat16)
    if form == "int8":
        weight = quantise(weight.astype(jnp.float32), (1,), "int8")
    product = functools.partial(chosen_product, is_chosen_E=IS_CHOSEN_E, platform="tpu")
    jaxpr = jax.make_jaxpr(lambda x, weight: product(x, weight))(shape, weight)
    (call,) = (eqn for eqn in jaxpr.eqns if eqn.primitive.name == "pallas_call")
    mapping = call.params["grid_mapping"]
    assert mapping.grid[0] > 1
    block = mapping.block_mappings[1]
    told = IS_CHOSEN_E.astype(jnp.int32), jnp.array([2, 2, 2, 2, 2, 5, 6, 6])
    steps = [_place(block, step, told) for step in np.ndindex(*mapping.grid)]
    copies = 1 + sum(now != before for now, before in zip(steps[1:], steps, strict=False))
    size = math.prod(getattr(n, "block_size", 1) for n in block.block_shape)
    assert copies * size == len(CHOSEN) * 2048 * 3072


def _place(block, step, told):
    """The place that a block's index map names at a step of the grid."""
    jaxpr = block.index_map_jaxpr
    refs = [jax.new_ref(each) for each in told]
    flat = jax.tree.leaves(((*step, *refs), {}))
    return tuple(map(int, jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *flat)))


@pytest.mark.parametrize("form", [_plain, _adapted, _quantised])
def test_it_takes_few_tokens_and_what_its_blocks_divide(form):
    weights = form(WEIGHTS)[:3]
    for platform in PLATFORMS:
        assert has_kernel(platform, MOST_TOKENS, *weights)
        assert not has_kernel(platform, MOST_TOKENS + 1, *weights)
    assert not has_kernel("cpu", 1, *weights)
    assert not has_kernel("gpu", 1, WEIGHTS.gate[:, :, :200], WEIGHTS.up, WEIGHTS.down)


def test_its_zeros_are_those_of_experts_that_nobody_chose():
    product = chosen_product(
        X_TD[None], _poisoned(WEIGHTS).gate, IS_CHOSEN_E, "gpu", interpret=True
    )
    zero_E = ~np.asarray(product != 0).any(axis=(1, 2))
    np.testing.assert_array_equal(zero_E, ~np.asarray(IS_CHOSEN_E))

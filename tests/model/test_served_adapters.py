"""Adapters side by side, of which each row uses one."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.config.hardware import MeshShape
from ale_jax.config.model import ALL_LINEAR
from ale_jax.model.capacity_dispatch import are_few
from ale_jax.model.lora import adapted_layers
from ale_jax.model.moe import moe
from ale_jax.model.params import init_params
from ale_jax.model.served_adapters import (
    OF_COLUMN,
    OF_SLOT,
    for_rows,
    of_column,
    ranks,
    side_by_side,
)
from ale_jax.model.sharding import make_mesh
from tests.engine.test_engine_adapters import drawn_adapter
from tests.model.shapes import MOE

ADAPTERS = [drawn_adapter(MOE, 3, (ALL_LINEAR,), 1), drawn_adapter(MOE, 2, ("down", "q"), 2)]
PARAMS = init_params(jax.random.key(0), MOE)


def beside(adapters, adapter_S):
    """Weights with adapters, of which the slots use these."""
    entries = {"adapters": side_by_side(adapters, MOE), OF_COLUMN: of_column(adapters)}
    return PARAMS | entries | {OF_SLOT: jnp.array(adapter_S)}


def test_columns_belong_to_the_adapters_in_their_order():
    assert ranks(ADAPTERS) == [3, 2] and of_column(ADAPTERS).tolist() == [1, 1, 1, 2, 2]
    q, down = (side_by_side(ADAPTERS, MOE)[1][name] for name in ("q_DNH", "down_EFD"))
    np.testing.assert_array_equal(q["a"][:, 3:], ADAPTERS[1][1]["q_DNH"]["a"])
    np.testing.assert_array_equal(down["b"][:, :3], ADAPTERS[0][1]["down_EFD"]["b"])
    gate = side_by_side(ADAPTERS, MOE)[1]["gate_EDF"]
    assert not gate["a"][..., 3:].any() and not gate["b"][:, 3:].any(), "the second has none"


def test_what_others_have_in_their_columns_does_not_matter():
    """Not even where a product with it overflows."""
    loud = jax.tree.map(lambda x: jnp.full_like(x, 1e38), ADAPTERS[1])
    x_BTD = jax.random.normal(jax.random.key(1), (1, 3, MOE.width))
    said = [
        moe(adapted_layers(for_rows(beside(two, [1])))[1], x_BTD, MOE.layers[1].feed_forward)[0]
        for two in (ADAPTERS, [ADAPTERS[0], loud])
    ]
    np.testing.assert_array_equal(*said)


@pytest.mark.heavy
@pytest.mark.parametrize("tokens", [4, 64], ids=["few", "many"])
@pytest.mark.parametrize(
    "mesh", [None, MeshShape(expert=4), MeshShape(expert=4, tensor=2)], ids=str
)
def test_each_row_of_experts_uses_its_own_adapter(tokens, mesh):
    """By the ways that experts are computed: all of them, in blocks of equal size, on a mesh."""
    rows = 8
    assert are_few(rows * tokens, 2, 8) == (tokens == 4)
    kind = MOE.layers[0].feed_forward
    x_BTD = jax.random.normal(jax.random.key(1), (rows, tokens, MOE.width))
    adapter_B = np.arange(rows) % 3
    expected = np.stack(
        [
            moe(adapted_layers(PARAMS | own)[0], x_BTD[row][None], kind)[0][0]
            for row, number in enumerate(adapter_B)
            for own in [{"adapters": ADAPTERS[number - 1]} if number else {}]
        ]
    )
    # The slots in another order than the rows.
    slot_B = np.arange(rows)[::-1]
    layer = adapted_layers(for_rows(beside(ADAPTERS, adapter_B[slot_B]), slot_B))[0]
    with jax.set_mesh(make_mesh(mesh)) if mesh else contextlib.nullcontext():
        got = jax.jit(lambda layer, x: moe(layer, x, kind)[0])(layer, x_BTD)
    np.testing.assert_allclose(got, expected, atol=1e-5)

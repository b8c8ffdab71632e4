"""Experts on several devices compute what they do on one, however uneven the routing is."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from ale_jax.config.hardware import MeshShape
from ale_jax.model.capacity_dispatch import Weights, capacity_dispatch
from ale_jax.model.compute import EXACT
from ale_jax.model.expert_parallel import exchanged
from ale_jax.model.moe import moe
from ale_jax.model.params import init_params
from ale_jax.model.sharding import make_mesh
from tests.model.shapes import CLAMPED, MOE, changed, with_biases

SHAPE = changed(MOE, num_experts=16)
LAYER = init_params(jax.random.key(0), SHAPE)["layers"][0]
WEIGHTS = with_biases(Weights(LAYER["gate_EDF"], LAYER["up_EDF"], LAYER["down_EFD"]))
EXPERTS = SHAPE.layers[0].experts
BIASED = dataclasses.replace(EXPERTS, gate=CLAMPED, bias=True, router_bias=True)
TOKENS = 96
X_TD = jax.random.normal(jax.random.key(1), (TOKENS, SHAPE.width))
ROUTINGS = {
    "even": jnp.stack([jnp.arange(TOKENS) % 16, (jnp.arange(TOKENS) + 5) % 16], axis=1),
    "all to one device": jnp.tile(jnp.array([[8, 9]]), (TOKENS, 1)),
    "one device sends all to another": jnp.where(
        jnp.arange(TOKENS)[:, None] < TOKENS // 4,
        jnp.array([[14, 15]]),
        jnp.stack([jnp.arange(TOKENS) % 16, (jnp.arange(TOKENS) + 5) % 16], axis=1),
    ),
}


def _graded(outputs):
    """Of (weights, tokens, their experts): the sum of the sines of `outputs`, and its gradient."""

    def scalar(weights, x_TD, expert_TK):
        y_TKD = outputs(weights, x_TD, expert_TK)
        return jnp.sin(y_TKD).sum(), y_TKD

    return jax.jit(jax.value_and_grad(scalar, argnums=(0, 1), has_aux=True))


@pytest.fixture(scope="module")
def both_ways():
    """On one device, and over four."""
    tokens, held = PartitionSpec("expert"), PartitionSpec("expert")
    over_devices = jax.shard_map(
        partial(exchanged, gate=CLAMPED),
        mesh=make_mesh(MeshShape(data=2, expert=4)),
        in_specs=(held, tokens, tokens),
        out_specs=tokens,
        check_vma=False,
    )
    return _graded(partial(capacity_dispatch, gate=CLAMPED)), _graded(over_devices)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_tokens_travel_to_their_experts_and_back(both_ways, routing):
    expected, found = (each(WEIGHTS, X_TD, ROUTINGS[routing]) for each in both_ways)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), expected, found)


def _total(layer, x_BTD, replay_BTK, kind):
    out_BTD, stats = moe(layer, x_BTD, kind, replay_BTK)
    return jnp.sin(out_BTD).sum() + stats.prob_TE.max(axis=1).sum(), (out_BTD, stats)


def _layer(kind):
    if not kind.bias:
        return LAYER
    names = {"gate_bias": "gate_bias_EF", "up_bias": "up_bias_EF", "down_bias": "down_bias_ED"}
    biases = {ours: getattr(WEIGHTS, name) for name, ours in names.items()}
    return LAYER | biases | {"router_logit_bias_E": jnp.linspace(-1.0, 1.0, kind.num)}


def _same_layer(mesh_shape, rows, tokens, replay_BTK=None, kind=EXPERTS) -> bool:
    """Asserts that a layer on the mesh is that on one device; returns whether tokens travel."""
    x_BTD = jax.random.normal(jax.random.key(2), (rows, tokens, SHAPE.width))
    graded = jax.value_and_grad(partial(_total, kind=kind), argnums=(0, 1), has_aux=True)
    layer = _layer(kind)
    alone = jax.jit(graded)(layer, x_BTD, replay_BTK)
    with jax.set_mesh(make_mesh(mesh_shape)):
        step = jax.jit(graded).lower(layer, x_BTD, replay_BTK).compile()
        found = step(layer, x_BTD, replay_BTK)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), alone, found)
    return "all-to-all" in step.as_text()


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("mesh_shape", "travels", "replays", "kind"),
    [
        (MeshShape(data=2, expert=2, tensor=2), True, False, BIASED),
        (MeshShape(data=1, expert=2, context=4), True, True, EXPERTS),
        (MeshShape(data=2, tensor=4), False, False, EXPERTS),
    ],
    ids=["experts, tensor", "experts, context", "tensor"],
)
def test_a_layer_on_a_mesh_is_the_same_layer(mesh_shape, travels, replays, kind):
    own_BTK = jnp.full((8, 48, SHAPE.experts_per_token), -1)
    # Every third token is left to the router.
    other_BTK = own_BTK.at[:, ::3].set(jnp.array([15, 2])).at[:, 1::3].set(jnp.array([0, 9]))
    assert _same_layer(mesh_shape, 8, 48, other_BTK if replays else None, kind) == travels


@pytest.mark.parametrize("rows", [1, 6], ids="{} rows".format)
def test_rows_that_cannot_be_divided_are_on_every_device(rows):
    """Each device adds the share of its own experts, and none travels."""
    assert not _same_layer(MeshShape(data=1, expert=4, tensor=2), rows, 1, kind=BIASED)


@pytest.mark.parametrize("kind", [EXPERTS, BIASED], ids=["plain", "biased"])
def test_the_few_tokens_of_a_decode_step_are_seen_by_all_experts(kind):
    assert not _same_layer(MeshShape(data=1, expert=4, tensor=2), 8, 1, kind=kind)


@pytest.mark.heavy
def test_few_tokens_are_rounded_as_many_are():
    """Else sampler and learner would disagree in bfloat16."""
    layer = {name: weight.astype(jnp.bfloat16) for name, weight in LAYER.items()}
    x_BTD = jax.random.normal(jax.random.key(2), (8, 48, SHAPE.width), jnp.bfloat16)
    apply = jax.jit(moe, static_argnums=2, compiler_options=EXACT)
    with jax.set_mesh(make_mesh(MeshShape(data=1, expert=4, tensor=2))):
        few, many = (apply(layer, x, EXPERTS)[0] for x in (x_BTD[:, :1], x_BTD))
    assert (few[:, 0] == many[:, 0]).mean() > 0.99

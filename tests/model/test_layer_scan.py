"""A deep model is scanned, one layer of each form, and computes what its layers compute."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.config.hardware import MeshShape
from ale_jax.config.model import ALL_LINEAR, Compute, LoraShape
from ale_jax.model import layers as layers_module
from ale_jax.model.lora import new_adapters, trained, with_trained
from ale_jax.model.params import init_params
from ale_jax.model.policy import hidden_states
from ale_jax.model.sharding import make_mesh
from tests.model.shapes import MOE, RECURRENT, changed

pytestmark = pytest.mark.heavy

# One layer without experts in front, and one between the two runs that are scanned.
DEEP = changed(MOE, num_layers=8, dense_layers=(0, 4))
RUN = 3
# Three times a layer that sees four tokens and one that sees all, and two more of the latter.
WINDOWED = dataclasses.replace(
    DEEP,
    layers=tuple(
        dataclasses.replace(
            layer, mixer=dataclasses.replace(layer.mixer, window=4 if i in (0, 2, 4) else 0)
        )
        for i, layer in enumerate(changed(DEEP, dense_layers=()).layers)
    ),
)
# Three times a gated delta layer and attention.
_DELTA, _, _ATTENTION = RECURRENT.layers
HYBRID = dataclasses.replace(RECURRENT, layers=(_DELTA, _ATTENTION) * 3)
LORA = LoraShape(rank=4, alpha=8.0, targets=(ALL_LINEAR,))
TOKENS_BT = np.random.default_rng(0).integers(0, 96, (8, 16))
MESHES = {"alone": {}, "on a mesh": {"data": 2, "expert": 2, "context": 2}}


def computed(monkeypatch, adapted, compute, mesh, scanned, shape=DEEP):
    """Gradient and router statistics, and the program, with runs of `scanned` layers scanned."""
    monkeypatch.setattr(layers_module, "SCANNED", scanned)
    params = init_params(jax.random.key(0), shape)
    if adapted:
        params |= new_adapters(jax.random.key(1), shape, LORA)
        # Adapters that change something.
        params = with_trained(params, jax.tree.map(lambda each: each + 0.02, trained(params)))

    def loss(moved, tokens_BT):
        position_BT = jnp.broadcast_to(jnp.arange(16), tokens_BT.shape)
        weights = with_trained(params, moved)
        hidden_BTD, stats = hidden_states(
            weights, tokens_BT, position_BT, jnp.ones_like(tokens_BT), shape, compute
        )
        target_BTD = jnp.sin(jnp.arange(hidden_BTD.size)).reshape(hidden_BTD.shape)
        return (hidden_BTD * target_BTD).astype(jnp.float32).mean(), stats

    with jax.set_mesh(make_mesh(MeshShape(**mesh))):
        compiled = jax.jit(jax.grad(loss, has_aux=True)).lower(trained(params), TOKENS_BT).compile()
        return compiled(trained(params), TOKENS_BT), compiled.as_text()


@pytest.mark.parametrize(
    ("shape", "mesh", "adapted", "remat"),
    [
        (DEEP, "alone", True, "none"),
        (DEEP, "on a mesh", False, "layers"),
        (WINDOWED, "alone", False, "layers"),
    ],
    ids=["adapted", "on a mesh", "windows"],
)
def test_a_scan_computes_what_the_layers_compute(monkeypatch, shape, mesh, adapted, remat):
    compute = Compute("float32", remat)
    (grads, stats), text = computed(monkeypatch, adapted, compute, MESHES[mesh], RUN, shape)
    (expected, expected_stats), unrolled = computed(
        monkeypatch, adapted, compute, MESHES[mesh], 100, shape
    )
    assert len(stats) == len(expected_stats) == shape.num_moe_layers
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-7), grads, expected
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), stats, expected_stats
    )
    assert len(text) < len(unrolled), "nothing was scanned"


def test_a_scan_of_states_computes_what_the_layers_compute(monkeypatch):
    """To the digits that their norms leave, of the largest number of each weight."""
    compute = Compute("float32", "layers")
    found, text = computed(monkeypatch, True, compute, MESHES["alone"], RUN, HYBRID)
    expected, unrolled = computed(monkeypatch, True, compute, MESHES["alone"], 100, HYBRID)
    for ours, theirs in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-4 * np.abs(theirs).max())
    assert len(text) < len(unrolled), "nothing was scanned"

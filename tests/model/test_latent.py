"""Latent attention in the learner: over devices as on one, and with adapters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.config.hardware import MeshShape
from ale_jax.config.model import LoraShape
from ale_jax.model.lora import merged, new_adapters, with_trained
from ale_jax.model.params import init_params
from ale_jax.model.policy import hidden_states
from ale_jax.model.sharding import make_mesh, param_shardings
from tests.model.shapes import LATENT

TOKENS_BT = np.random.default_rng(0).integers(0, 96, (4, 32))


@jax.jit
def _outcome(params):
    """Hidden states, and the gradient of a function of them."""

    def total(params):
        position_BT = jnp.broadcast_to(jnp.arange(16), (2, 16)).reshape(1, 32).repeat(4, axis=0)
        segment_BT = jnp.repeat(jnp.asarray([[1, 2]] * 4), 16, axis=1)
        hidden_BTD, _ = hidden_states(params, TOKENS_BT, position_BT, segment_BT, LATENT)
        return jnp.sin(3 * hidden_BTD).sum(), hidden_BTD

    return jax.grad(total, has_aux=True)(params)


@pytest.mark.heavy
def test_over_devices_it_is_the_same():
    params = init_params(jax.random.key(0), LATENT)
    expected, mesh = _outcome(params), make_mesh(MeshShape(fsdp=2, tensor=2, context=2))
    with jax.set_mesh(mesh):
        found = _outcome(jax.device_put(params, param_shardings(LATENT, mesh)))

    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4 * np.abs(other).max())


def test_all_maps_can_have_adapters():
    lora = LoraShape(rank=2, alpha=4.0, targets=("layers.*.q_*", "kv_down", "kv_up", "o"))
    params = init_params(jax.random.key(0), LATENT)
    adapted = params | new_adapters(jax.random.key(1), LATENT, lora)
    adapted = with_trained(adapted, jax.tree.map(lambda x: x + 0.1, adapted["adapters"]))
    assert set(adapted["adapters"][0]) == {
        *("q_down_DO", "q_up_ONH", "kv_down_DO", "kv_up_ONH", "o_NHD")
    }
    plain = merged(adapted)
    for name, weight in params["layers"][0].items():
        assert np.allclose(plain["layers"][0][name], weight) == (name not in adapted["adapters"][0])

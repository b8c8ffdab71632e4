"""What the sampler is given on a mesh: each weight where a decode step wants it."""

import jax
import numpy as np
import pytest

from ale_jax.config.hardware import MeshShape
from ale_jax.config.model import FLOAT32, Compute
from ale_jax.model import sampling_weights as module
from ale_jax.model.params import init_params
from ale_jax.model.sampling_weights import sampling_weights, served_weights
from ale_jax.model.sharding import make_mesh, param_shardings
from tests.model.shapes import MIXED, MOE, changed

PARAMS = init_params(jax.random.key(0), MOE)


def _on(mesh_shape):
    mesh = make_mesh(mesh_shape)
    return mesh, jax.device_put(PARAMS, param_shardings(MOE, mesh))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_that_are_cut_along_fsdp_are_served_whole(dtype):
    mesh, learned = _on(MeshShape(data=1, fsdp=2, expert=2, tensor=2))
    served = sampling_weights(learned, MOE, Compute(dtype), mesh)
    layer = served["layers"][1]
    places = {
        "embed_VD": (served["embed_VD"], (48, 32)),
        "q_DNH": (layer["q_DNH"], (32, 2, 16)),
        "o_NHD": (layer["o_NHD"], (2, 16, 32)),
        "router_DE": (layer["router_DE"], (32, 8)),
        "gate_EDF": (layer["gate_EDF"], (4, 32, 12)),
        "down_EFD": (layer["down_EFD"], (4, 12, 32)),
    }
    for name, (weight, share) in places.items():
        assert weight.sharding.shard_shape(weight.shape) == share, name
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0.01), served, PARAMS)
    again = sampling_weights(learned, MOE, Compute(dtype), mesh)
    assert jax.tree.map(lambda a: a.sharding, served) == jax.tree.map(lambda a: a.sharding, again)


def test_layers_of_one_form_share_a_program(monkeypatch):
    traced = []

    def noted(params, *rest):
        traced.append(len(params["layers"]))
        return served_weights(params, *rest)

    monkeypatch.setattr(module, "served_weights", noted)
    deep = changed(MIXED, num_layers=5, vocab_size=95)  # of no other test
    served = sampling_weights(init_params(jax.random.key(0), deep), deep, Compute("bfloat16"))
    assert len(served["layers"]) == 5
    # What is outside of the layers, and a layer of each form.
    assert traced == [0, 1, 1]


@pytest.mark.heavy
def test_where_nothing_is_cut_the_learners_own_arrays_are_served():
    mesh, learned = _on(MeshShape(data=2, expert=2, tensor=2))
    assert sampling_weights(learned, MOE, FLOAT32, mesh) is learned

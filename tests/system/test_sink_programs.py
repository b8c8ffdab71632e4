"""Training steps of gpt-oss and Gemma 2, with sinks and caps, can be lowered for TPUs."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from ale_jax.config.model import FULL, Compute
from ale_jax.learn.state import abstract_trained
from ale_jax.learn.step import forward
from ale_jax.model.sharding import batch_sharding
from ale_jax.model.weights.config import read_config
from tests.model.families.test_published_files import FOLDER
from tests.system.test_latent_programs import MESH


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["gpt-oss-20b", "gemma-2-2b"])
def test_the_step_attends_by_the_platforms_kernel(name):
    whole = read_config(FOLDER / f"{name}.json")
    policy = dataclasses.replace(whole, layers=whole.layers[:2])  # one with a window, one without
    params = abstract_trained(policy, FULL, MESH)
    numbers = jax.ShapeDtypeStruct((16, 6144), jnp.int32, sharding=batch_sharding(MESH))
    batch = dict.fromkeys(("tokens_BT", "position_BT", "segment_BT"), numbers)

    def loss(params, batch):
        return forward(params, batch, policy, Compute("bfloat16", "layers"))[0].logp_BT.sum()

    with jax.sharding.use_abstract_mesh(MESH):
        traced = jax.jit(jax.grad(loss)).trace(params, batch)
        text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert "tpu_custom_call" in text and "6144x6144" not in text

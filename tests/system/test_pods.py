"""The training step of every planned config can be lowered for its platform, on its whole mesh."""

import dataclasses
import importlib

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from ale_jax.learn.state import abstract_trained
from ale_jax.learn.step import forward
from ale_jax.model.lora import FULL
from ale_jax.model.moe import balancing_loss
from ale_jax.model.sharding import batch_sharding, mesh_sizes
from ale_jax.system.build_config import build_config
from tests.test_configs import PLANNED


@pytest.mark.parametrize("name", [name for name in PLANNED if name.endswith(("v5p", "v6e"))])
def test_a_pods_step_can_be_lowered(name):
    config = build_config(importlib.import_module(f"configs.{name}").get_config().to_dict())
    policy = config.model.policy_shape(config.tokenizer.vocab_size)
    policy = dataclasses.replace(policy, num_layers=2)
    sizes = mesh_sizes(config.mesh, config.hardware.devices)
    mesh = AbstractMesh(
        tuple(sizes.values()),
        tuple(sizes),
        axis_types=(AxisType.Auto,) * len(sizes),
        abstract_device=AbstractDevice(device_kind="TPU", num_cores=1, platform="tpu"),
    )
    params, compute = abstract_trained(policy, FULL, mesh), config.learn.compute
    size = (config.learn.rows, config.learn.row_tokens)
    numbers = jax.ShapeDtypeStruct(size, jnp.int32, sharding=batch_sharding(mesh))
    batch = dict.fromkeys(("tokens_BT", "position_BT", "segment_BT"), numbers)

    def loss(params, batch):
        scores, router = forward(params, batch, policy, compute)
        return scores.logp_BT.sum() + balancing_loss(router, policy)

    with jax.sharding.use_abstract_mesh(mesh):
        traced = jax.jit(jax.grad(loss)).trace(params, batch)
        text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert "tpu_custom_call" in text  # attention by the platform's kernel
    assert ("all_to_all" in text) == (config.mesh.expert > 1)

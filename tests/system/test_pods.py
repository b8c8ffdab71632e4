"""Training step and sampler of the pods' configs can be lowered for TPUs, on their whole mesh."""

import dataclasses
import importlib
import re
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from ale_jax.config.model import FULL
from ale_jax.engine.dispatch import PrefillBatcher, page_table, slot_state
from ale_jax.learn.state import abstract_trained
from ale_jax.learn.step import forward
from ale_jax.model.generate import prefill_and_decode
from ale_jax.model.memory import cache_shardings, empty_cache
from ale_jax.model.moe import balancing_loss
from ale_jax.model.params import is_param, param_table
from ale_jax.model.replicas import engine_sizes
from ale_jax.model.sharding import (
    SAMPLER_RULES,
    batch_sharding,
    mesh_sizes,
    num_data_shards,
    param_shardings,
)
from ale_jax.model.weights.shape import policy_shape
from ale_jax.system.checks import checked_config
from tests.test_configs import PLANNED

pytestmark = pytest.mark.heavy

FOUR_DIMS = re.compile(r"tensor<\d+x\d+x\d+x\d+xbf16>")
PODS = [name for name in PLANNED if name.endswith(("v5p", "v6e", "tpu7x"))]


def _pod(name, of_engine=False):
    """The config, two layers of its policy, and its mesh of TPUs, or that of an engine."""
    config = checked_config(
        importlib.import_module(f"ale_jax.configs.{name}").get_config().to_dict()
    )
    policy = policy_shape(config, config.tokenizer.vocab_size)
    sizes = mesh_sizes(config.mesh, config.hardware.devices)
    if of_engine:
        sizes = engine_sizes(sizes, config.hardware.devices_per_process)
    mesh = AbstractMesh(
        tuple(sizes.values()),
        tuple(sizes),
        axis_types=(AxisType.Auto,) * len(sizes),
        abstract_device=AbstractDevice(device_kind="TPU", num_cores=1, platform="tpu"),
    )
    return config, dataclasses.replace(policy, layers=policy.layers[:2]), mesh


@pytest.mark.parametrize("name", PODS)
def test_a_pods_step_can_be_lowered(name):
    config, policy, mesh = _pod(name)
    params, compute = abstract_trained(policy, FULL, mesh), config.learn
    size = (config.learn.microbatch_rows, config.learn.pack_length)
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


@pytest.mark.parametrize("name", PODS)
def test_a_pods_sampler_can_be_lowered(name):
    """On the chips of one host."""
    config, policy, mesh = _pod(name, of_engine=True)
    engine, dtype = config.engine, jnp.dtype(config.learn.compute_dtype)
    places = param_shardings(policy, mesh, SAMPLER_RULES)
    cache = jax.eval_shape(partial(empty_cache, policy, engine.pages, engine.page_tokens, dtype))
    with jax.sharding.use_abstract_mesh(mesh):
        traced = prefill_and_decode.trace(
            jax.tree.map(
                lambda param, place: jax.ShapeDtypeStruct(param.shape, dtype, sharding=place),
                param_table(policy),
                places,
                is_leaf=is_param,
            ),
            [
                jax.tree.map(
                    lambda x, place=place: jax.ShapeDtypeStruct(x.shape, dtype, sharding=place),
                    kept,
                )
                for kept, place in zip(cache, cache_shardings(policy, mesh), strict=True)
            ],
            slot_state([], engine.max_sequences),
            page_table([], engine),
            PrefillBatcher(engine, num_data_shards(mesh)).arrays(),
            slot_state([], engine.max_sequences),
            shape=policy,
            sizes=engine.prefill_tokens,
            steps=engine.decode_steps,
            stop_ids=(0,),
            platform="tpu",
        )
        text = traced.lower(lowering_platforms=("tpu",)).as_text()
    heads, pages = (
        policy.layers[0].mixer.num_kv_heads // mesh.shape["tensor"],
        engine.pages // num_data_shards(mesh),
    )
    own = f"tensor<{heads}x{pages}x{engine.page_tokens}x{policy.layers[0].mixer.head_width}xbf16>"
    kernels = [line for line in text.splitlines() if "@tpu_custom_call" in line]
    of_pages = [line for line in kernels if FOUR_DIMS.search(line)]  # others are of experts
    assert of_pages and all(line.count(own) == 2 for line in of_pages)

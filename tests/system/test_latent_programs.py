"""Training step and sampler of DeepSeek V3's layers can be lowered for TPUs."""

import dataclasses
import json
import math
import re
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from ale_jax.config.model import FULL, Compute
from ale_jax.engine.dispatch import PrefillBatcher, page_table, slot_state
from ale_jax.learn.state import abstract_trained
from ale_jax.learn.step import forward
from ale_jax.model.generate import prefill_and_decode
from ale_jax.model.memory import cache_shardings, empty_cache
from ale_jax.model.params import is_param, param_table
from ale_jax.model.sharding import (
    SAMPLER_RULES,
    batch_sharding,
    num_data_shards,
    param_shardings,
)
from ale_jax.model.weights.config import read_text
from tests.engine.shapes import engine_shape
from tests.model.families.test_published import V3

pytestmark = pytest.mark.heavy

WHOLE = read_text(json.dumps(V3), "config.json")
POLICY = dataclasses.replace(WHOLE, layers=WHOLE.layers[2:4])  # the last dense one, one of experts
MESH = AbstractMesh(
    (2, 2, 4, 2, 1),
    ("data", "fsdp", "expert", "tensor", "context"),
    axis_types=(AxisType.Auto,) * 5,
    abstract_device=AbstractDevice(device_kind="TPU v5p", num_cores=1, platform="tpu"),
)


def test_the_step_attends_by_the_platforms_kernel():
    """Whose values are narrower than its keys: 128 numbers, and 192."""
    params = abstract_trained(POLICY, FULL, MESH)
    numbers = jax.ShapeDtypeStruct((16, 4096), jnp.int32, sharding=batch_sharding(MESH))
    batch = dict.fromkeys(("tokens_BT", "position_BT", "segment_BT"), numbers)

    def loss(params, batch):
        return forward(params, batch, POLICY, Compute("bfloat16", "layers"))[0].logp_BT.sum()

    with jax.sharding.use_abstract_mesh(MESH):
        traced = jax.jit(jax.grad(loss)).trace(params, batch)
        text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert "tpu_custom_call" in text and "4096x4096" not in text


def test_the_sampler_keeps_and_reads_latents_alone():
    engine = engine_shape(max_sequences=64, max_sequence_length=6144, page_tokens=64)
    engine = dataclasses.replace(engine, decode_steps=8, prefill_tokens=(16,))
    make = partial(empty_cache, POLICY, engine.pages, engine.page_tokens, jnp.bfloat16)
    places = param_shardings(POLICY, MESH, SAMPLER_RULES)

    def abstract(x, place):
        return jax.ShapeDtypeStruct(x.shape, jnp.bfloat16, sharding=place)

    params = jax.tree.map(abstract, param_table(POLICY), places, is_leaf=is_param)
    kept = zip(jax.eval_shape(make), cache_shardings(POLICY, MESH), strict=True)
    cache = [jax.tree.map(partial(abstract, place=place), pages) for pages, place in kept]
    idle = slot_state([], engine.max_sequences)
    chunks = PrefillBatcher(engine, num_data_shards(MESH)).arrays()
    with jax.sharding.use_abstract_mesh(MESH):
        traced = prefill_and_decode.trace(
            *(params, cache, idle, page_table([], engine), chunks, idle),
            shape=POLICY,
            sizes=engine.prefill_tokens,
            steps=engine.decode_steps,
            stop_ids=(0,),
            platform="tpu",
        )
        text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert f"tensor<{engine.pages // 16}x64x576xbf16>" in text  # what a device has of the pages
    found = re.findall(r"tensor<([\dx]+)x(?:bf16|f32)>", text)
    sizes = {
        tuple(map(int, dims.split("x")))
        for dims in found
        if re.search(r"\b6(144|208)\b", dims.replace("x", " "))
    }
    assert (64, 6208, 576) in sizes  # of all slots, with room for what is decoded
    # Scores of the 16 tokens of a chunk have 2,048 numbers per token, keys alone would have 16,384.
    per_token = {math.prod(dims) // max(dims) for dims in sizes}
    assert max(per_token) == 64 * 576 < 64 * 128 * 128

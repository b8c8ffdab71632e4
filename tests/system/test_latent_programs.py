"""Training step and sampler of DeepSeek V3's layers can be lowered for TPUs."""

import dataclasses
import json
import math
import re

import jax
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from ale_jax.config.hardware import HardwareConfig
from ale_jax.model.weights.config import read_text
from ale_jax.system.plan import make_plan
from benchmarks.families.tiny import make_config
from benchmarks.lowering import traced_gradient, traced_sampler
from tests.engine.shapes import engine_shape
from tests.model.families.test_published import V3
from tests.system.configs import smoke_config

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
    with jax.sharding.use_abstract_mesh(MESH):
        traced = traced_gradient(POLICY, MESH, 16, 4096)
        text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert "tpu_custom_call" in text and "4096x4096" not in text


def test_the_sampler_keeps_and_reads_latents_alone():
    engine = engine_shape(max_sequences=64, max_sequence_length=6144, page_tokens=64)
    engine = dataclasses.replace(engine, decode_steps=8, prefill_tokens=(16,))
    with jax.sharding.use_abstract_mesh(MESH):
        traced = traced_sampler(POLICY, MESH, engine)
        text = traced.lower(lowering_platforms=("tpu",)).as_text()
    # What a device has of the pages: 576 numbers, and 64 zeros to fill its lanes.
    assert f"tensor<{engine.pages // 16}x64x640xbf16>" in text
    found = re.findall(r"tensor<([\dx]+)x(?:bf16|f32)>", text)
    sizes = {
        tuple(map(int, dims.split("x")))
        for dims in found
        if re.search(r"\b6(144|208)\b", dims.replace("x", " "))
    }
    assert (64, 6208, 640) in sizes  # of all slots, with room for what is decoded
    # Scores of the 16 tokens of a chunk have 2,048 numbers per token, keys alone would have 16,384.
    per_token = {math.prod(dims) // max(dims) for dims in sizes}
    assert max(per_token) == 64 * 640 < 64 * 128 * 128


def test_zeros_behind_latents_are_planned_for_tpus_alone():
    tiny = json.dumps(make_config("deepseek_v3").to_dict())  # 32 numbers per token
    config = dataclasses.replace(smoke_config(), architecture=tiny)
    h100, v5p = (
        {need.what: need.bytes for need in make_plan(each).needs}
        for chip in ("h100", "v5p")
        for each in [dataclasses.replace(config, hardware=HardwareConfig(chip=chip, devices=8))]
    )
    name = "keys and values of the sampler"
    assert v5p[name] * 32 == h100[name] * 128

"""Training step and sampler of Qwen3-Next's layers can be lowered for TPUs, and what its states
take is planned."""

import dataclasses
import json
from pathlib import Path

import jax
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from ale_jax.model.weights.config import read_text
from ale_jax.model.weights.shape import policy_shape
from ale_jax.system.plan import make_plan
from benchmarks.families.tiny import make_config
from benchmarks.lowering import abstract_cache, traced_gradient, traced_sampler
from tests.engine.shapes import engine_shape
from tests.system.configs import smoke_config

pytestmark = pytest.mark.heavy

PUBLISHED = Path(__file__).parents[1] / "model/families/published/Qwen3-Next-80B-A3B.json"
WHOLE = read_text(PUBLISHED.read_text(), "config.json")
POLICY = dataclasses.replace(WHOLE, layers=WHOLE.layers[2:4])  # with a state, and with attention
MESH = AbstractMesh(
    (2, 2, 4, 2, 1),
    ("data", "fsdp", "expert", "tensor", "context"),
    axis_types=(AxisType.Auto,) * 5,
    abstract_device=AbstractDevice(device_kind="TPU v5p", num_cores=1, platform="tpu"),
)


def test_the_step_solves_a_system_for_each_chunk_and_keeps_no_scores():
    with jax.sharding.use_abstract_mesh(MESH):
        traced = traced_gradient(POLICY, MESH, 16, 3072)
        text = traced.lower(lowering_platforms=("tpu",)).as_text()
    # Of a device: its row, half of 32 heads, 64 tokens. Whole rows have no scores.
    assert "tensor<1x16x64x64xf32>" in text and "3072x3072" not in text
    assert "triangular_solve" in text


def test_the_sampler_keeps_a_state_of_each_slot():
    engine = engine_shape(max_sequences=64, max_sequence_length=6144, page_tokens=64)
    engine = dataclasses.replace(engine, decode_steps=8, prefill_tokens=(16,))
    assert abstract_cache(POLICY, engine, "tpu")[0].state_BNHh.shape == (64, 32, 128, 128)
    with jax.sharding.use_abstract_mesh(MESH):
        traced = traced_sampler(POLICY, MESH, engine)
        text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert "tensor<4x16x128x128xf32>" in text  # what one of 16 shards has, half of its heads


TINY = json.dumps(make_config("qwen3_5_text").to_dict())


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("mesh", "context", 2),
        ("engine", "share_replies", True),
        ("engine", "speculative_tokens", 4),
        ("attention_credit", "credit", "global"),
    ],
)
def test_what_states_cannot_honour_is_refused_by_name(section, field, value):
    config = dataclasses.replace(smoke_config(), architecture=TINY)
    assert policy_shape(config, 0).is_recurrent
    part = dataclasses.replace(getattr(config, section), **{field: value})
    with pytest.raises(ValueError, match=rf"^{section}\.{field} .*: the policy has recurrent l"):
        policy_shape(dataclasses.replace(config, **{section: part}), 0)


def test_states_are_planned_apart_from_pages():
    """Of one layer; and on their way to the host as many conversations as pages, at most."""
    config = dataclasses.replace(smoke_config(), architecture=TINY)
    needs = {need.what: need.bytes for need in make_plan(config).needs}
    engine, devices = config.engine, jax.device_count()
    state = 4 * (4 * 16 * 12 + 3 * (2 * 2 * 16 + 4 * 12))  # of the rule; of three inputs
    assert needs["states of the sampler"] == state * engine.max_sequences // devices
    page = 2 * 4 * 2 * 16 * engine.page_tokens
    assert needs["keys and values of the sampler"] == page * engine.pages // devices
    each = engine.shard(devices)
    moved = each.swapped_pages * page + min(each.swapped_pages, each.max_sequences) * state
    ways = 2 + engine.dispatch_ahead
    assert needs["pages on their way to the host or back"] == ways * moved

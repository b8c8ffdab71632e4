"""Qwen3.5, dense and with experts: Qwen3-Next's layers, whose projections lie apart."""

from __future__ import annotations

from ale_jax.config.architecture import PolicyShape
from ale_jax.model.families.decoder import dense, num_layers
from ale_jax.model.families.delta import (
    COMMON_DELTA,
    DELTA,
    QKV,
    delta_experts,
    delta_layers,
)
from ale_jax.model.families.family import HEADS_OUT, MATRIX, Family, Storage
from ale_jax.model.families.fields import Fields
from ale_jax.model.families.qwen2_moe import SHARED_EXPERT


def read(fields: Fields) -> PolicyShape:
    fields.require("mlp_only_layers", [])  # all are
    return delta_layers(fields, [dense(fields)] * num_layers(fields))


def read_moe(fields: Fields) -> PolicyShape:
    fields.get("intermediate_size")  # no layer is dense
    fields.require("mlp_only_layers", [])
    return delta_layers(fields, [delta_experts(fields)] * num_layers(fields))


APART = {name: Storage(DELTA + "in_proj_qkv.weight", HEADS_OUT, QKV) for name in QKV} | {
    "delta_gate_DNh": Storage(DELTA + "in_proj_z.weight", HEADS_OUT),
    "delta_beta_DN": Storage(DELTA + "in_proj_b.weight", MATRIX),
    "delta_rate_DN": Storage(DELTA + "in_proj_a.weight", MATRIX),
}
QWEN3_5 = Family("qwen3_5_text", "Qwen3_5ForCausalLM", read, COMMON_DELTA | APART, further="mtp.")
QWEN3_5_MOE = Family(
    "qwen3_5_moe_text",
    "Qwen3_5MoeForCausalLM",
    read_moe,
    COMMON_DELTA | APART | SHARED_EXPERT,
    further="mtp.",
)

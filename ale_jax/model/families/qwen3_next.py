"""Qwen3-Next: gated delta layers, between which there is gated attention, and experts."""

from __future__ import annotations

from ale_jax.config.architecture import PolicyShape
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
from ale_jax.model.families.qwen3_moe import sparse


def read(fields: Fields) -> PolicyShape:
    experts = delta_experts(fields, fields.flag("norm_topk_prob"))
    return delta_layers(fields, sparse(fields, experts))


# In a block for each key head there is what belongs to it.
QKVZ, BA, HEADS = (*QKV, "delta_gate_DNh"), ("delta_beta_DN", "delta_rate_DN"), "delta_k_DGH"
BY_HEAD = {
    **{n: Storage(DELTA + "in_proj_qkvz.weight", HEADS_OUT, QKVZ, blocks=HEADS) for n in QKVZ},
    **{n: Storage(DELTA + "in_proj_ba.weight", MATRIX, BA, blocks=HEADS) for n in BA},
}
# As transformers, which leaves out what predicts further tokens.
QWEN3_NEXT = Family(
    "qwen3_next",
    "Qwen3NextForCausalLM",
    read,
    COMMON_DELTA | BY_HEAD | SHARED_EXPERT,
    further="mtp.",
)

"""Qwen1.5 and Qwen2 with experts, one of which is shared. A model that was upcycled from Qwen2 or
Llama is one, with a shared expert of width 0."""

from __future__ import annotations

from ale_jax.config.architecture import Layer, PolicyShape
from ale_jax.model.families.decoder import attention, decoder, rms, silu_experts
from ale_jax.model.families.family import LAYER, MATRIX, Family, Storage
from ale_jax.model.families.fields import Fields
from ale_jax.model.families.qwen3_moe import sparse


def read(fields: Fields) -> PolicyShape:
    mixer = attention(fields, bias=fields.flag("qkv_bias"))
    fields.require("use_sliding_window", False)
    for name in ("sliding_window", "max_window_layers", "layer_types"):
        fields.get(name)
    none = fields.get("shared_expert_intermediate_size") == 0
    shared = 0 if none else fields.count("shared_expert_intermediate_size")
    experts = silu_experts(
        fields,
        "num_experts",
        "moe_intermediate_size",
        renormalise=fields.flag("norm_topk_prob"),
        shared=shared,
        shared_gate=shared > 0,
    )
    norm = rms(fields)
    return decoder(fields, [Layer(mixer, each, norm) for each in sparse(fields, experts)], norm)


SHARED = LAYER + "mlp.shared_expert"
SHARED_EXPERT = {
    "shared_gate_DF": Storage(SHARED + ".gate_proj.weight", MATRIX),
    "shared_up_DF": Storage(SHARED + ".up_proj.weight", MATRIX),
    "shared_down_FD": Storage(SHARED + ".down_proj.weight", MATRIX),
    "shared_share_D1": Storage(SHARED + "_gate.weight", MATRIX),
}
QWEN2_MOE = Family("qwen2_moe", "Qwen2MoeForCausalLM", read, SHARED_EXPERT)

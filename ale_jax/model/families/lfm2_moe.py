"""LFM2 with experts in all layers but the first ones."""

from __future__ import annotations

from ale_jax.config.architecture import PolicyShape
from ale_jax.model.families.decoder import dense, num_layers, silu_experts
from ale_jax.model.families.family import MATRIX, VECTOR, Family, Storage
from ale_jax.model.families.fields import Fields
from ale_jax.model.families.lfm2 import FEED, TENSORS, read_layers


def read(fields: Fields) -> PolicyShape:
    experts = silu_experts(
        fields,
        "num_experts",
        "moe_intermediate_size",
        score="sigmoid",
        renormalise=fields.flag("norm_topk_prob"),
        eps=1e-6,
        scale=fields.number("routed_scaling_factor"),
        choice_bias=fields.flag("use_expert_bias"),
    )
    first = fields.get("num_dense_layers", 0)
    fields.get("intermediate_size")
    feeds = [dense(fields) if i < first else experts for i in range(num_layers(fields))]
    return read_layers(fields, feeds)


EXPERT, STACK = FEED + "experts.{expert}.", ((2,), (1,))
EXPERTS = {
    "router_DE": Storage(FEED + "gate.weight", MATRIX),
    "router_bias_E": Storage(FEED + "expert_bias", VECTOR),
    "gate_EDF": Storage(EXPERT + "w1.weight", STACK),
    "up_EDF": Storage(EXPERT + "w3.weight", STACK),
    "down_EFD": Storage(EXPERT + "w2.weight", STACK),
}
LFM2_MOE = Family("lfm2_moe", "Lfm2MoeForCausalLM", read, TENSORS | EXPERTS)

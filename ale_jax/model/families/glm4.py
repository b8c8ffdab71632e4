"""GLM-4-0414, and GLM-4.5 to 4.7 with experts."""

from __future__ import annotations

import dataclasses

from ale_jax.config.architecture import Layer, PolicyShape
from ale_jax.model.families.decoder import (
    attention,
    decoder,
    dense,
    num_layers,
    rms,
    silu_experts,
)
from ale_jax.model.families.family import LAYER, MATRIX, VECTOR, Family, Storage
from ale_jax.model.families.fields import Fields


def read(fields: Fields) -> PolicyShape:
    mixer = attention(fields, bias=fields.flag("attention_bias"))
    assert mixer.rope is not None
    mixer = dataclasses.replace(mixer, rope=dataclasses.replace(mixer.rope, interleaved=True))
    norm = rms(fields, place="both")
    return decoder(fields, [Layer(mixer, dense(fields), norm)] * num_layers(fields), norm)


def read_moe(fields: Fields) -> PolicyShape:
    width = fields.count("moe_intermediate_size")
    experts = silu_experts(
        fields,
        "n_routed_experts" if fields.get("n_routed_experts") else "num_local_experts",
        "moe_intermediate_size",
        score="sigmoid",
        renormalise=fields.flag("norm_topk_prob"),
        scale=fields.number("routed_scaling_factor"),
        choice_bias=True,
        groups=fields.count("n_group"),
        top_groups=fields.count("topk_group"),
        shared=width * fields.count("n_shared_experts"),
    )
    fields.get("num_nextn_predict_layers")  # of what only speeds up decoding
    mixer = attention(
        fields,
        bias=fields.flag("attention_bias"),
        qk_norm="head" if fields.flag("use_qk_norm") else "",
    )
    norm, plain, count = rms(fields), dense(fields), num_layers(fields)
    first = fields.get("first_k_dense_replace")
    layers = [Layer(mixer, plain if i < first else experts, norm) for i in range(count)]
    return decoder(fields, layers, norm)


GATE_UP = LAYER + "mlp.gate_up_proj.weight"
GLM4 = Family(
    "glm4",
    "Glm4ForCausalLM",
    read,
    {
        "attn_after_norm_D": Storage(LAYER + "post_self_attn_layernorm.weight", VECTOR),
        "ffn_after_norm_D": Storage(LAYER + "post_mlp_layernorm.weight", VECTOR),
        "gate_DF": Storage(GATE_UP, MATRIX, ("gate_DF", "up_DF")),
        "up_DF": Storage(GATE_UP, MATRIX, ("gate_DF", "up_DF")),
    },
)
GLM4_MOE = Family("glm4_moe", "Glm4MoeForCausalLM", read_moe)

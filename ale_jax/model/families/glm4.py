"""GLM-4, and GLM-4.5 to 4.7 with experts, whose mixtures Solar Open and dots.llm1 have, too."""

from __future__ import annotations

from collections.abc import Sequence

from ale_jax.config.architecture import Layer, Mixer, PolicyShape
from ale_jax.model.families.decoder import (
    DENSE,
    SPARSE,
    attention,
    decoder,
    dense,
    interleaved,
    layer_types,
    num_layers,
    rms,
    silu_experts,
    windowed,
)
from ale_jax.model.families.family import LAYER, MATRIX, NEXT_LAYER, VECTOR, Family, Storage
from ale_jax.model.families.fields import Fields


def read(fields: Fields) -> PolicyShape:
    mixer = interleaved(attention(fields, partial=True, bias=fields.flag("attention_bias")))
    norm = rms(fields, place="both" if fields.get("model_type") == "glm4" else "before")
    return decoder(fields, [Layer(mixer, dense(fields), norm)] * num_layers(fields), norm)


def read_moe(fields: Fields) -> PolicyShape:
    fields.get("num_nextn_predict_layers")  # of what only speeds up decoding
    mixer = attention(
        fields,
        partial=True,
        bias=fields.flag("attention_bias"),
        qk_norm="head" if fields.flag("use_qk_norm") else "",
    )
    return mixture(fields, [mixer] * num_layers(fields))


def read_solar(fields: Fields) -> PolicyShape:
    return mixture(
        fields, [attention(fields, bias=fields.flag("attention_bias"))] * num_layers(fields)
    )


def read_dots(fields: Fields) -> PolicyShape:
    bias = fields.flag("attention_bias")
    full = attention(fields, bias=bias, out_bias=bias, qk_norm="head")
    fields.get("max_window_layers")  # the types say it
    return mixture(fields, windowed(fields, full, layer_types(fields)))


def mixture(fields: Fields, mixers: Sequence[Mixer], types: Sequence[str] = ()) -> PolicyShape:
    """Returns the shape of layers with experts, but for the first ones, or for those of `types`
    that are dense."""
    width = fields.count("moe_intermediate_size")
    shared = fields.count("n_shared_experts") if fields.get("n_shared_experts") else 0
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
        shared=width * shared,
    )
    norm, first = rms(fields), fields.get("first_k_dense_replace", 0)
    fields.get("intermediate_size")
    types = types or [DENSE if i < first else SPARSE for i in range(len(mixers))]
    feeds = [dense(fields) if each == DENSE else experts for each in types]
    layers = [Layer(*both, norm) for both in zip(mixers, feeds, strict=True)]
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
GLM = Family("glm", "GlmForCausalLM", read, GLM4.tensors)
GLM4_MOE = Family("glm4_moe", "Glm4MoeForCausalLM", read_moe, further=NEXT_LAYER)
SOLAR_OPEN = Family("solar_open", "SolarOpenForCausalLM", read_solar)
DOTS1 = Family("dots1", "Dots1ForCausalLM", read_dots)

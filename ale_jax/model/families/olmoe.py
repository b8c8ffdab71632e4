"""OLMoE and FlexOlmo."""

from __future__ import annotations

from ale_jax.config.architecture import Layer, Norm, PolicyShape
from ale_jax.model.families.decoder import attention, decoder, num_layers, rms, silu_experts
from ale_jax.model.families.family import NORMS_AFTER, Family
from ale_jax.model.families.fields import Fields


def read(fields: Fields) -> PolicyShape:
    fields.require("clip_qkv", None)
    return _mixture(fields, rms(fields))


def read_flex(fields: Fields) -> PolicyShape:
    return _mixture(fields, rms(fields, place="after"))


def _mixture(fields: Fields, norm: Norm) -> PolicyShape:
    bias = fields.flag("attention_bias")
    mixer = attention(fields, bias=bias, out_bias=bias, qk_norm="width")
    renormalise = fields.flag("norm_topk_prob")
    experts = silu_experts(fields, "num_experts", "intermediate_size", renormalise=renormalise)
    return decoder(fields, [Layer(mixer, experts, norm)] * num_layers(fields), norm)


OLMOE = Family("olmoe", "OlmoeForCausalLM", read)
FLEX_OLMO = Family("flex_olmo", "FlexOlmoForCausalLM", read_flex, NORMS_AFTER)

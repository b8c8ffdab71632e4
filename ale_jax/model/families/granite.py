"""Granite 3 and 4, dense or with experts, and HyperCLOVA X: Llamas with multipliers."""

from __future__ import annotations

import dataclasses

from ale_jax.config.architecture import FeedForward, Layer, PolicyShape
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
    return _with_multipliers(fields, dense(fields, bias=fields.flag("mlp_bias")))


def read_moe(fields: Fields) -> PolicyShape:
    shared = fields.get("shared_intermediate_size")
    width = fields.count("shared_intermediate_size") if shared else 0
    experts = silu_experts(fields, "num_local_experts", "intermediate_size", shared=width)
    return _with_multipliers(fields, experts)


def read_hyperclovax(fields: Fields) -> PolicyShape:
    """Of Granite's layers, with logits that are multiplied and not divided."""
    shape = read(fields)
    norm = rms(fields, place="both" if fields.flag("use_post_norm") else "before")
    layers = tuple(dataclasses.replace(each, norm=norm) for each in shape.layers)
    scale = fields.number("logits_scaling")
    return dataclasses.replace(shape, layers=layers, hidden_scale=scale)


def _with_multipliers(fields: Fields, feed: FeedForward) -> PolicyShape:
    bias = fields.flag("attention_bias")
    scale = fields.number("attention_multiplier")
    mixer = attention(fields, bias=bias, out_bias=bias, scale=scale)
    norm = rms(fields)
    layer = Layer(mixer, feed, norm, fields.number("residual_multiplier"))
    return decoder(
        fields,
        [layer] * num_layers(fields),
        norm,
        embed_scale=fields.number("embedding_multiplier"),
        hidden_scale=1 / fields.number("logits_scaling"),
    )


MOE, SHARED = LAYER + "block_sparse_moe.", LAYER + "shared_mlp."
STACKED = ((0,), (2,), (1,))  # all experts in one tensor [E, out, in]
ROUTED, ALWAYS = ("gate_EDF", "up_EDF"), ("shared_gate_DF", "shared_up_DF")
MIXTURE = {
    "router_DE": Storage(MOE + "router.layer.weight", MATRIX),
    "down_EFD": Storage(MOE + "output_linear.weight", STACKED),
    "shared_down_FD": Storage(SHARED + "output_linear.weight", MATRIX),
    **{n: Storage(MOE + "input_linear.weight", STACKED, ROUTED, axis=1) for n in ROUTED},
    **{n: Storage(SHARED + "input_linear.weight", MATRIX, ALWAYS) for n in ALWAYS},
}
NORMS_BEHIND = {
    "attn_after_norm_D": Storage(LAYER + "post_norm1.weight", VECTOR),
    "ffn_after_norm_D": Storage(LAYER + "post_norm2.weight", VECTOR),
}
GRANITE = Family("granite", "GraniteForCausalLM", read)
GRANITEMOE = Family("granitemoe", "GraniteMoeForCausalLM", read_moe, MIXTURE)
GRANITEMOESHARED = Family("granitemoeshared", "GraniteMoeSharedForCausalLM", read_moe, MIXTURE)
HYPERCLOVAX = Family("hyperclovax", "HyperCLOVAXForCausalLM", read_hyperclovax, NORMS_BEHIND)

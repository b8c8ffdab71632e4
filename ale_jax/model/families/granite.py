"""Granite 3 and 4, dense or with experts: Llamas with multipliers."""

from __future__ import annotations

from ale_jax.config.architecture import FeedForward, Layer, PolicyShape
from ale_jax.model.families.decoder import (
    attention,
    decoder,
    dense,
    num_layers,
    rms,
    silu_experts,
)
from ale_jax.model.families.family import LAYER, MATRIX, Family, Storage
from ale_jax.model.families.fields import Fields


def read(fields: Fields) -> PolicyShape:
    return _with_multipliers(fields, dense(fields, bias=fields.flag("mlp_bias")))


def read_moe(fields: Fields) -> PolicyShape:
    return _with_multipliers(fields, silu_experts(fields, "num_local_experts", "intermediate_size"))


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


MOE = LAYER + "block_sparse_moe."
STACKED = ((0,), (2,), (1,))  # all experts in one tensor [E, out, in]
GATE_AND_UP = ("gate_EDF", "up_EDF")

GRANITE = Family("granite", "GraniteForCausalLM", read)
GRANITEMOE = Family(
    "granitemoe",
    "GraniteMoeForCausalLM",
    read_moe,
    {
        "router_DE": Storage(MOE + "router.layer.weight", MATRIX),
        "gate_EDF": Storage(MOE + "input_linear.weight", STACKED, GATE_AND_UP, axis=1),
        "up_EDF": Storage(MOE + "input_linear.weight", STACKED, GATE_AND_UP, axis=1),
        "down_EFD": Storage(MOE + "output_linear.weight", STACKED),
    },
)

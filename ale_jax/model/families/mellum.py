"""Mellum 2: Qwen3 with experts, windows, and a rotary embedding for each type of layer."""

from __future__ import annotations

from ale_jax.config.architecture import Layer, PolicyShape
from ale_jax.model.families.decoder import (
    DENSE,
    attention,
    decoder,
    dense,
    feed_types,
    rms,
    rotated,
    silu_experts,
)
from ale_jax.model.families.family import Family
from ale_jax.model.families.fields import Fields


def read(fields: Fields) -> PolicyShape:
    bias, norm, plain = fields.flag("attention_bias"), rms(fields), dense(fields)
    full = attention(fields, bias=bias, out_bias=bias, qk_norm="head", rope=None)
    experts = silu_experts(
        fields,
        "num_local_experts" if fields.get("num_local_experts") else "num_experts",
        "moe_intermediate_size",
        renormalise=fields.flag("norm_topk_prob"),
    )
    for name in ("mtp_layer_types", "mtp_mlp_layer_types", "num_nextn_predict_layers"):
        fields.get(name)  # of what only speeds up decoding
    feeds = [plain if each == DENSE else experts for each in feed_types(fields)]
    layers = [Layer(*both, norm) for both in zip(rotated(fields, full), feeds, strict=True)]
    return decoder(fields, layers, norm)


MELLUM = Family("mellum", "MellumForCausalLM", read)

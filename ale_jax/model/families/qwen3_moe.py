"""Qwen3 with experts."""

from __future__ import annotations

from ale_jax.config.architecture import Dense, Experts, Layer, PolicyShape
from ale_jax.model.families.decoder import (
    attention,
    decoder,
    dense,
    num_layers,
    rms,
    silu_experts,
)
from ale_jax.model.families.family import Family
from ale_jax.model.families.fields import Fields


def read(fields: Fields) -> PolicyShape:
    bias = fields.flag("attention_bias")
    mixer = attention(fields, bias=bias, out_bias=bias, qk_norm="head")
    fields.require("use_sliding_window", False)
    for name in ("sliding_window", "max_window_layers"):
        fields.get(name)
    experts = silu_experts(
        fields,
        "num_local_experts" if fields.get("num_local_experts") else "num_experts",
        "moe_intermediate_size",
        renormalise=fields.flag("norm_topk_prob"),
    )
    norm = rms(fields)
    return decoder(fields, [Layer(mixer, each, norm) for each in sparse(fields, experts)], norm)


def sparse(fields: Fields, experts: Experts) -> list[Dense | Experts]:
    """Returns each layer's feed-forward: experts in every decoder_sparse_step-th layer that is not
    listed."""
    step, listed = fields.count("decoder_sparse_step"), fields.items("mlp_only_layers")
    plain = dense(fields)
    return [plain if i in listed or (i + 1) % step else experts for i in range(num_layers(fields))]


QWEN3_MOE = Family("qwen3_moe", "Qwen3MoeForCausalLM", read)

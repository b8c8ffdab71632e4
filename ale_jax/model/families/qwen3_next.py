"""Qwen3-Next and Qwen3.5 (text): gated delta layers, between which there is gated attention."""

from __future__ import annotations

from collections.abc import Sequence

from ale_jax.config.architecture import (
    Experts,
    FeedForward,
    GatedDelta,
    Layer,
    Mixer,
    PolicyShape,
)
from ale_jax.model.families.decoder import (
    FULL,
    attention,
    decoder,
    dense,
    layer_types,
    num_layers,
    rms,
    silu_experts,
)
from ale_jax.model.families.family import LAYER, MATRIX, VECTOR, Family, Storage
from ale_jax.model.families.fields import Fields
from ale_jax.model.families.qwen2_moe import SHARED_EXPERT
from ale_jax.model.families.qwen3_moe import sparse

LINEAR = "linear_attention"


def read_next(fields: Fields) -> PolicyShape:
    experts = _experts(fields, fields.flag("norm_topk_prob"))
    return _read(fields, sparse(fields, experts))


def read_dense(fields: Fields) -> PolicyShape:
    fields.require("mlp_only_layers", [])  # all are
    return _read(fields, [dense(fields)] * num_layers(fields))


def read_moe(fields: Fields) -> PolicyShape:
    fields.get("intermediate_size")  # no layer is dense
    fields.require("mlp_only_layers", [])
    return _read(fields, [_experts(fields)] * num_layers(fields))


def _experts(fields: Fields, renormalise: bool = True) -> Experts:
    return silu_experts(
        fields,
        "num_experts",
        "moe_intermediate_size",
        renormalise=renormalise,
        shared=fields.count("shared_expert_intermediate_size"),
        shared_gate=True,
    )


def _read(fields: Fields, feeds: Sequence[FeedForward]) -> PolicyShape:
    fields.require("hidden_act", "silu")  # which the convolutions have, too
    fields.require("attn_output_gate", True)
    fields.require("mamba_ssm_dtype", "float32")
    fields.require("output_gate_type", "swish")
    fields.get("full_attention_interval")  # layer_types says it
    for name in ("num_hidden_layers", "use_dedicated_embeddings"):
        fields.get(f"mtp_{name}")  # of what predicts further tokens, which is left out
    bias, norm = fields.flag("attention_bias"), rms(fields, plus_one=True)
    full = attention(fields, partial=True, bias=bias, out_bias=bias, qk_norm="head", gate=True)
    mixers: dict[str, Mixer] = {FULL: full, LINEAR: _delta(fields)}
    types = layer_types(fields, tuple(mixers))
    if FULL not in types:
        raise fields.error(f"layer_types has no {FULL}: such models are not supported")
    kinds = zip(types, feeds, strict=True)
    return decoder(fields, [Layer(mixers[kind], feed, norm) for kind, feed in kinds], norm)


def _delta(fields: Fields) -> GatedDelta:
    key_heads, heads = (
        fields.count(f"linear_num_{each}_heads", most=1024) for each in ("key", "value")
    )
    if heads % key_heads:
        raise fields.error(
            f"linear_num_value_heads {heads} must be a multiple of linear_num_key_heads {key_heads}"
        )
    return GatedDelta(
        key_heads,
        heads,
        fields.count("linear_key_head_dim"),
        fields.count("linear_value_head_dim"),
        fields.count("linear_conv_kernel_dim", most=64),
    )


DELTA = LAYER + "linear_attn."
IN, FILTERS = ((1, 2), (0,)), ((0, 1), (), (2,))  # the latter with an axis of size 1
CONVOLVED = tuple(f"delta_conv_{each}" for each in ("q_GHi", "k_GHi", "v_Nhi"))
QKV = ("delta_q_DGH", "delta_k_DGH", "delta_v_DNh")
QKVZ, BA = (*QKV, "delta_gate_DNh"), ("delta_beta_DN", "delta_rate_DN")
COMMON_DELTA = {
    "delta_decay_N": Storage(DELTA + "A_log", VECTOR),
    "delta_decay_bias_N": Storage(DELTA + "dt_bias", VECTOR),
    "delta_norm_h": Storage(DELTA + "norm.weight", VECTOR),
    "delta_o_NhD": Storage(DELTA + "out_proj.weight", ((2,), (0, 1))),
} | {name: Storage(DELTA + "conv1d.weight", FILTERS, CONVOLVED) for name in CONVOLVED}
# In a block for each key head there is what belongs to it.
HEADS = "delta_k_DGH"
BY_HEAD = {name: Storage(DELTA + "in_proj_qkvz.weight", IN, QKVZ, blocks=HEADS) for name in QKVZ}
GATES_BY_HEAD = {
    name: Storage(DELTA + "in_proj_ba.weight", MATRIX, BA, blocks=HEADS) for name in BA
}
APART = {name: Storage(DELTA + "in_proj_qkv.weight", IN, QKV) for name in QKV} | {
    "delta_gate_DNh": Storage(DELTA + "in_proj_z.weight", IN),
    "delta_beta_DN": Storage(DELTA + "in_proj_b.weight", MATRIX),
    "delta_rate_DN": Storage(DELTA + "in_proj_a.weight", MATRIX),
}
# As transformers, which leaves out what predicts further tokens.
QWEN3_NEXT = Family(
    "qwen3_next",
    "Qwen3NextForCausalLM",
    read_next,
    COMMON_DELTA | BY_HEAD | GATES_BY_HEAD | SHARED_EXPERT,
    further="mtp.",
)
QWEN3_5 = Family(
    "qwen3_5_text", "Qwen3_5ForCausalLM", read_dense, COMMON_DELTA | APART, further="mtp."
)
QWEN3_5_MOE = Family(
    "qwen3_5_moe_text",
    "Qwen3_5MoeForCausalLM",
    read_moe,
    COMMON_DELTA | APART | SHARED_EXPERT,
    further="mtp.",
)

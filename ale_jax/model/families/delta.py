"""What families with gated delta layers share: how their layers are read, and the names of the
tensors that all of them have."""

from __future__ import annotations

from collections.abc import Sequence

from ale_jax.config.architecture import Experts, FeedForward, GatedDelta, Layer, Mixer, PolicyShape
from ale_jax.model.families.decoder import (
    FULL,
    attention,
    decoder,
    layer_types,
    rms,
    silu_experts,
)
from ale_jax.model.families.family import LAYER, VECTOR, Storage
from ale_jax.model.families.fields import Fields

LINEAR = "linear_attention"


def delta_layers(fields: Fields, feeds: Sequence[FeedForward]) -> PolicyShape:
    """Returns the shape of gated delta layers and gated attention, with these feed-forwards."""
    only = {"attn_output_gate": True, "output_gate_type": "swish", "mamba_ssm_dtype": "float32"}
    for name, value in {**only, "hidden_act": "silu"}.items():  # the convolutions have it, too
        fields.require(name, value)
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


def delta_experts(fields: Fields, renormalise: bool = True) -> Experts:
    return silu_experts(
        fields,
        "num_experts",
        "moe_intermediate_size",
        renormalise=renormalise,
        shared=fields.count("shared_expert_intermediate_size"),
        shared_gate=True,
    )


def _delta(fields: Fields) -> GatedDelta:
    key_heads, heads = (
        fields.count(f"linear_num_{each}_heads", most=1024) for each in ("key", "value")
    )
    if heads % key_heads:
        raise fields.error(
            f"linear_num_value_heads {heads} must be a multiple of linear_num_key_heads {key_heads}"
        )
    width, value_width = (fields.count(f"linear_{each}_head_dim") for each in ("key", "value"))
    conv_width = fields.count("linear_conv_kernel_dim", most=64)
    return GatedDelta(key_heads, heads, width, value_width, conv_width)


DELTA = LAYER + "linear_attn."
CONVOLVED = tuple(f"delta_conv_{each}" for each in ("q_GHi", "k_GHi", "v_Nhi"))
FILTERS = ((0, 1), (), (2,))  # with an axis of size 1
COMMON_DELTA = {
    "delta_decay_N": Storage(DELTA + "A_log", VECTOR),
    "delta_decay_bias_N": Storage(DELTA + "dt_bias", VECTOR),
    "delta_norm_h": Storage(DELTA + "norm.weight", VECTOR),
    "delta_o_NhD": Storage(DELTA + "out_proj.weight", ((2,), (0, 1))),
} | {name: Storage(DELTA + "conv1d.weight", FILTERS, CONVOLVED) for name in CONVOLVED}
QKV = ("delta_q_DGH", "delta_k_DGH", "delta_v_DNh")

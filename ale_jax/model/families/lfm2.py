"""LFM2: short convolutions, between which there is attention."""

from __future__ import annotations

from collections.abc import Sequence

from ale_jax.config.architecture import (
    Dense,
    FeedForward,
    Layer,
    Mixer,
    Norm,
    PolicyShape,
    ShortConv,
)
from ale_jax.model.families.decoder import FULL, attention, decoder, layer_types, num_layers
from ale_jax.model.families.family import LAYER, MATRIX, VECTOR, Family, Storage
from ale_jax.model.families.fields import Fields

CONV = "conv"


def read(fields: Fields) -> PolicyShape:
    width = fields.count("intermediate_size")
    share, multiple = fields.number("block_ffn_dim_multiplier"), fields.count("block_multiple_of")
    if fields.flag("block_auto_adjust_ff_dim"):
        width = int(share * int(2 * width / 3))
        width = -(-width // multiple) * multiple
    if width < 1:
        raise fields.error(f"block_ffn_dim_multiplier {share} leaves feed-forwards no width")
    for name in ("mlp_init_scale", "out_init_scale", "use_xavier_init"):
        fields.get(f"block_{name}")
    return read_layers(fields, [Dense(width)] * num_layers(fields))


def read_layers(fields: Fields, feeds: Sequence[FeedForward]) -> PolicyShape:
    """Returns the shape of layers with these feed-forwards."""
    width, heads, eps = (fields.get(n) for n in ("hidden_size", "num_attention_heads", "norm_eps"))
    only = {"block_dim": width, "conv_dim": width, "conv_dim_out": width, "num_heads": heads}
    only |= {"block_norm_eps": eps, "block_use_swiglu": True, "use_pos_enc": True}
    for name, value in only.items():
        fields.require(name, value)
    for name in ("full_attn_idxs", "conv_use_xavier_init"):  # see layer_types; for training
        fields.get(name)
    norm, bias = Norm(fields.number("norm_eps")), fields.flag("conv_bias")
    conv = ShortConv(fields.count("hidden_size"), fields.count("conv_L_cache", most=64), bias)
    mixers: dict[str, Mixer] = {FULL: attention(fields, qk_norm="head"), CONV: conv}
    types = layer_types(fields, tuple(mixers))
    if FULL not in types:
        raise fields.error(f"layer_types has no {FULL}: such models are not supported")
    kinds = zip(types, feeds, strict=True)
    return decoder(fields, [Layer(mixers[kind], feed, norm) for kind, feed in kinds], norm)


FEED, INTO = LAYER + "feed_forward.", ("short_before_DC", "short_after_DC", "short_x_DC")
INTO_BIAS = ("short_before_bias_C", "short_after_bias_C", "short_x_bias_C")
TENSORS = {
    "final_norm_D": Storage("model.embedding_norm.weight", VECTOR),
    "attn_norm_D": Storage(LAYER + "operator_norm.weight", VECTOR),
    "ffn_norm_D": Storage(LAYER + "ffn_norm.weight", VECTOR),
    "q_norm_H": Storage(LAYER + "self_attn.q_layernorm.weight", VECTOR),
    "k_norm_H": Storage(LAYER + "self_attn.k_layernorm.weight", VECTOR),
    "o_NHD": Storage(LAYER + "self_attn.out_proj.weight", ((2,), (0, 1))),
    "short_conv_Ci": Storage(LAYER + "conv.conv.weight", ((0,), (), (1,))),
    "short_conv_bias_C": Storage(LAYER + "conv.conv.bias", VECTOR),
    "short_out_CD": Storage(LAYER + "conv.out_proj.weight", MATRIX),
    "short_out_bias_D": Storage(LAYER + "conv.out_proj.bias", VECTOR),
    "gate_DF": Storage(FEED + "w1.weight", MATRIX),
    "up_DF": Storage(FEED + "w3.weight", MATRIX),
    "down_FD": Storage(FEED + "w2.weight", MATRIX),
    **{n: Storage(LAYER + "conv.in_proj.weight", MATRIX, INTO) for n in INTO},
    **{n: Storage(LAYER + "conv.in_proj.bias", VECTOR, INTO_BIAS) for n in INTO_BIAS},
}
LFM2 = Family("lfm2", "Lfm2ForCausalLM", read, TENSORS)

"""Gemma 4 (text), as far as it has no experts and no embeddings of its own for each layer."""

from __future__ import annotations

import math

from ale_jax.config.architecture import Attention, FactorScaling, Layer, PolicyShape, Rope
from ale_jax.model.families.decoder import (
    SLIDING,
    attention,
    decoder,
    dense,
    layer_types,
    rms,
    rope_of,
)
from ale_jax.model.families.family import LAYER, NORMS_AFTER, VECTOR, Family, Storage
from ale_jax.model.families.fields import Fields

# What other models of the family have.
ONLY = {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "enable_moe_block": False}
OF_OTHERS = ("vocab_size_per_layer_input", "num_experts", "top_k_experts", "moe_intermediate_size")


def read(fields: Fields) -> PolicyShape:
    for name, value in {**ONLY, "use_double_wide_mlp": False}.items():
        fields.require(name, value)
    for name in OF_OTHERS:
        fields.get(name)
    if fields.get("use_bidirectional_attention") != "vision":  # which says nothing of text
        fields.require("use_bidirectional_attention", None)
    norm, feed = rms(fields, place="both"), dense(fields, act="hidden_activation")
    mixers = [_attention(_of_layer(fields, i), kind) for i, kind in enumerate(layer_types(fields))]
    layers = [Layer(each, feed, norm, scaled=True) for each in mixers]
    has_cap, scale = fields.get("final_logit_softcapping"), fields.count("hidden_size") ** 0.5
    cap = 0.0 if has_cap is None else fields.number("final_logit_softcapping")
    return decoder(fields, layers, norm, embed_scale=scale, logit_cap=cap)


def _of_layer(fields: Fields, number: int) -> Fields:
    """The fields that hold for a layer."""
    own = {int(layer): x for layer, x in fields.part("per_layer_config").values.items()}
    given = own.get(number, {})
    if not set(given) <= {"head_dim", "num_key_value_heads"}:
        raise fields.error(f"per_layer_config {given!r:.80} is not supported")
    return Fields(fields.source, {**fields.values, **given}, fields.taken)


def _attention(fields: Fields, kind: str) -> Attention:
    head_width, bias = fields.count("head_dim"), fields.flag("attention_bias")
    given = fields.part("rope_parameters").part(kind)
    return attention(
        fields,
        rope=_rope(fields, given, head_width),
        scale=1.0,
        window=fields.count("sliding_window") if kind == SLIDING else 0,
        qk_norm="head",
        bias=bias,
        out_bias=bias,
        value_norm=True,
        keys_as_values=fields.flag("attention_k_eq_v") and kind != SLIDING,
    )


def _rope(fields: Fields, given: Fields, head_width: int) -> Rope:
    given.require("truncate", True)  # transformers does not read it there
    if given.get("rope_type") != "proportional":
        return rope_of(fields, given, head_width)
    pairs, share = head_width // 2, given.number("partial_rotary_factor", 1.0)
    turned, factor = int(share * head_width // 2), given.number("factor", 1.0)
    scaling = FactorScaling((factor,) * turned + (math.inf,) * (pairs - turned), 1.0)
    rope = Rope(given.number("rope_theta"), head_width, scaling)
    given.refuse_rest()
    return rope


TENSORS = {**NORMS_AFTER, "layer_scale_1": Storage(LAYER + "layer_scalar", VECTOR)}
GEMMA4_TEXT = Family("gemma4_text", "Gemma4ForCausalLM", read, TENSORS)

"""Gemma 1, 2 and 3 (text), and VaultGemma."""

from __future__ import annotations

from typing import Any

from ale_jax.config.architecture import Attention, Layer, PolicyShape
from ale_jax.model.families.decoder import (
    attention,
    decoder,
    dense,
    layer_types,
    num_layers,
    rms,
    rotated,
    windowed,
)
from ale_jax.model.families.family import NORMS_AFTER, Family
from ale_jax.model.families.fields import Fields


def read(fields: Fields) -> PolicyShape:
    bias, norm = fields.flag("attention_bias"), rms(fields, plus_one=True)
    fields.require("use_bidirectional_attention", False)
    fields.require("hidden_activation", fields.get("hidden_act"))
    layer = Layer(attention(fields, bias=bias, out_bias=bias), dense(fields), norm)
    layers = [layer] * num_layers(fields)
    return decoder(fields, layers, norm, embed_scale=fields.count("hidden_size") ** 0.5)


def read_gemma2(fields: Fields) -> PolicyShape:
    cap = _cap(fields, "attn_logit_softcapping")
    full = attention(fields, **_of_attention(fields), cap=cap)
    return _sandwiched(fields, windowed(fields, full, layer_types(fields)))


def read_gemma3(fields: Fields) -> PolicyShape:
    for name in ("_sliding_window_pattern", "sliding_window_pattern"):  # the types say it
        fields.get(name)
    fields.require("attn_logit_softcapping", None)  # transformers reads it for Gemma 2 alone
    full = attention(fields, **_of_attention(fields), qk_norm="head", rope=None)
    return _sandwiched(fields, rotated(fields, full))


def _cap(fields: Fields, name: str) -> float:
    return 0.0 if fields.get(name) is None else fields.number(name)


def _of_attention(fields: Fields) -> dict[str, Any]:
    fields.require("use_bidirectional_attention", False)
    bias = fields.flag("attention_bias")
    scale = fields.number("query_pre_attn_scalar") ** -0.5
    return {"bias": bias, "out_bias": bias, "scale": scale}


def _sandwiched(fields: Fields, mixers: list[Attention]) -> PolicyShape:
    """Of layers with norms on both sides of each block, if they are not VaultGemma's."""
    place = "before" if fields.get("model_type") == "vaultgemma" else "both"
    norm, feed = rms(fields, plus_one=True, place=place), dense(fields, act="hidden_activation")
    fields.require("hidden_act", fields.get("hidden_activation"))
    cap = _cap(fields, "final_logit_softcapping")
    layers, scale = [Layer(each, feed, norm) for each in mixers], fields.count("hidden_size") ** 0.5
    return decoder(fields, layers, norm, embed_scale=scale, logit_cap=cap)


GEMMA = Family("gemma", "GemmaForCausalLM", read)
GEMMA2 = Family("gemma2", "Gemma2ForCausalLM", read_gemma2, NORMS_AFTER)
VAULTGEMMA = Family(
    "vaultgemma",
    "VaultGemmaForCausalLM",
    read_gemma2,
    {"ffn_norm_D": NORMS_AFTER["ffn_norm_D"]},
)
GEMMA3_TEXT = Family("gemma3_text", "Gemma3ForCausalLM", read_gemma3, NORMS_AFTER)

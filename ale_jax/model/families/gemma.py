"""Gemma 1 and 3 (text)."""

from __future__ import annotations

from ale_jax.config.architecture import Layer, PolicyShape
from ale_jax.model.families.decoder import (
    attention,
    decoder,
    dense,
    num_layers,
    rms,
    rotated,
)
from ale_jax.model.families.family import NORMS_AFTER, Family
from ale_jax.model.families.fields import Fields


def read(fields: Fields) -> PolicyShape:
    bias, norm = fields.flag("attention_bias"), rms(fields, plus_one=True)
    fields.require("use_bidirectional_attention", False)
    layer = Layer(attention(fields, bias=bias, out_bias=bias), dense(fields), norm)
    layers = [layer] * num_layers(fields)
    return decoder(fields, layers, norm, embed_scale=fields.count("hidden_size") ** 0.5)


def read_gemma3(fields: Fields) -> PolicyShape:
    bias, norm = fields.flag("attention_bias"), rms(fields, plus_one=True, place="both")
    fields.require("use_bidirectional_attention", False)
    fields.require("final_logit_softcapping", None)
    for name in ("_sliding_window_pattern", "sliding_window_pattern"):  # the types say it
        fields.get(name)
    fields.require("attn_logit_softcapping", None)
    scale = fields.number("query_pre_attn_scalar") ** -0.5
    full = attention(fields, bias=bias, out_bias=bias, qk_norm="head", scale=scale, rope=None)
    feed = dense(fields, act="hidden_activation")
    layers = [Layer(each, feed, norm) for each in rotated(fields, full)]
    return decoder(fields, layers, norm, embed_scale=fields.count("hidden_size") ** 0.5)


GEMMA = Family("gemma", "GemmaForCausalLM", read)
GEMMA3_TEXT = Family("gemma3_text", "Gemma3ForCausalLM", read_gemma3, NORMS_AFTER)

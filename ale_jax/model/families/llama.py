"""Llama 1 to 3; InternLM 3 and IQuest-Coder, which are Llamas by another name; and models that are
Llamas but for their windows, the pairs of their rotation or feed-forwards without gates."""

from __future__ import annotations

from ale_jax.config.architecture import Layer, PolicyShape
from ale_jax.model.families.decoder import (
    attention,
    decoder,
    dense,
    interleaved,
    layer_types,
    num_layers,
    rms,
    windowed,
)
from ale_jax.model.families.family import Family
from ale_jax.model.families.fields import Fields


def read(fields: Fields) -> PolicyShape:
    fields.require("pretraining_tp", 1)
    bias = fields.flag("attention_bias")
    mixer = attention(fields, bias=bias, out_bias=bias)
    feed = dense(fields, bias=fields.flag("mlp_bias"))
    norm = rms(fields)
    return decoder(fields, [Layer(mixer, feed, norm)] * num_layers(fields), norm)


def read_cwm(fields: Fields) -> PolicyShape:
    fields.require("pretraining_tp", 1)
    norm, feed = rms(fields), dense(fields, bias=fields.flag("mlp_bias"))
    mixers = windowed(fields, attention(fields), layer_types(fields))
    return decoder(fields, [Layer(each, feed, norm) for each in mixers], norm)


def read_helium(fields: Fields) -> PolicyShape:
    norm, bias = rms(fields), fields.flag("attention_bias")
    mixer = interleaved(attention(fields, bias=bias))
    feed = dense(fields, bias=fields.flag("mlp_bias"))
    return decoder(fields, [Layer(mixer, feed, norm)] * num_layers(fields), norm)


def read_arcee(fields: Fields) -> PolicyShape:
    norm, bias = rms(fields), fields.flag("attention_bias")
    mixer = attention(fields, bias=bias, out_bias=bias)
    feed = dense(fields, bias=fields.flag("mlp_bias"), gated=False)
    return decoder(fields, [Layer(mixer, feed, norm)] * num_layers(fields), norm)


LLAMA = Family("llama", "LlamaForCausalLM", read)
INTERNLM3 = Family("internlm3", "LlamaForCausalLM", read)
IQUESTCODER = Family("iquestcoder", "LlamaForCausalLM", read)
CWM = Family("cwm", "CwmForCausalLM", read_cwm)
HELIUM = Family("helium", "HeliumForCausalLM", read_helium)
ARCEE = Family("arcee", "ArceeForCausalLM", read_arcee)

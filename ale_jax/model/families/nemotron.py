"""Nemotron 3 and 4, and Minitron: layer norms that scale by 1 + weight, and no gates; and Jais 2,
whose layer norms scale by the weight."""

from __future__ import annotations

from ale_jax.config.architecture import Attention, Layer, Norm, PolicyShape
from ale_jax.model.families.decoder import attention, decoder, dense, num_layers
from ale_jax.model.families.family import Family
from ale_jax.model.families.fields import Fields


def read(fields: Fields) -> PolicyShape:
    bias = fields.flag("attention_bias")
    mixer = attention(fields, partial=True, bias=bias, out_bias=bias)
    norm = Norm(fields.number("norm_eps"), plus_one=True, centred=True, bias=True)
    return _ungated(fields, mixer, norm)


def read_jais2(fields: Fields) -> PolicyShape:
    bias = fields.flag("attention_bias")
    norm = Norm(fields.number("layer_norm_eps"), centred=True, bias=True)
    return _ungated(fields, attention(fields, bias=bias, out_bias=bias), norm)


def _ungated(fields: Fields, mixer: Attention, norm: Norm) -> PolicyShape:
    feed = dense(fields, bias=fields.flag("mlp_bias"), gated=False)
    return decoder(fields, [Layer(mixer, feed, norm)] * num_layers(fields), norm)


NEMOTRON = Family("nemotron", "NemotronForCausalLM", read)
JAIS2 = Family("jais2", "Jais2ForCausalLM", read_jais2)

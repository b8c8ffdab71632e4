"""Nemotron 3 and 4, and Minitron: layer norms that scale by 1 + weight, and no gates."""

from __future__ import annotations

from ale_jax.config.architecture import Layer, Norm, PolicyShape
from ale_jax.model.families.decoder import attention, decoder, dense, num_layers
from ale_jax.model.families.family import Family
from ale_jax.model.families.fields import Fields


def read(fields: Fields) -> PolicyShape:
    bias = fields.flag("attention_bias")
    mixer = attention(fields, partial=True, bias=bias, out_bias=bias)
    feed = dense(fields, bias=fields.flag("mlp_bias"), gated=False)
    norm = Norm(fields.number("norm_eps"), plus_one=True, centred=True, bias=True)
    return decoder(fields, [Layer(mixer, feed, norm)] * num_layers(fields), norm)


NEMOTRON = Family("nemotron", "NemotronForCausalLM", read)

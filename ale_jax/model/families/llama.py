"""Llama 1 to 3, and the many models that are Llamas by another name."""

from __future__ import annotations

from ale_jax.config.architecture import Layer, PolicyShape
from ale_jax.model.families.decoder import attention, decoder, dense, num_layers, rms
from ale_jax.model.families.family import Family
from ale_jax.model.families.fields import Fields


def read(fields: Fields) -> PolicyShape:
    fields.require("pretraining_tp", 1)
    bias = fields.flag("attention_bias")
    mixer = attention(fields, bias=bias, out_bias=bias)
    feed = dense(fields, bias=fields.flag("mlp_bias"))
    norm = rms(fields)
    return decoder(fields, [Layer(mixer, feed, norm)] * num_layers(fields), norm)


LLAMA = Family("llama", "LlamaForCausalLM", read)

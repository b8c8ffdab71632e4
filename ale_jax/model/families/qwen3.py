"""Qwen3, dense."""

from __future__ import annotations

from ale_jax.config.architecture import Layer, PolicyShape
from ale_jax.model.families.decoder import (
    attention,
    decoder,
    dense,
    layer_types,
    rms,
    windowed,
)
from ale_jax.model.families.family import Family
from ale_jax.model.families.fields import Fields


def read(fields: Fields) -> PolicyShape:
    bias = fields.flag("attention_bias")
    full = attention(fields, bias=bias, out_bias=bias, qk_norm="head")
    for name in ("use_sliding_window", "max_window_layers"):  # the types say it
        fields.get(name)
    norm, mixers = rms(fields), windowed(fields, full, layer_types(fields))
    return decoder(fields, [Layer(each, dense(fields), norm) for each in mixers], norm)


QWEN3 = Family("qwen3", "Qwen3ForCausalLM", read)

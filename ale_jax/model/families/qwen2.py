"""Qwen2 and Qwen2.5, dense."""

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
    mixers = windowed(fields, attention(fields, bias=True), layer_types(fields))
    for name in ("use_sliding_window", "max_window_layers"):  # the types say it
        fields.get(name)
    norm = rms(fields)
    return decoder(fields, [Layer(each, dense(fields), norm) for each in mixers], norm)


QWEN2 = Family("qwen2", "Qwen2ForCausalLM", read)

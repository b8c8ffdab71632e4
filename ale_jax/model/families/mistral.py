"""Mistral 7B, Nemo and Small, and Ministral, whose layers may differ in their windows."""

from __future__ import annotations

from ale_jax.config.architecture import Layer, PolicyShape
from ale_jax.model.families.decoder import (
    FULL,
    SLIDING,
    attention,
    decoder,
    dense,
    layer_types,
    num_layers,
    rms,
    windowed,
)
from ale_jax.model.families.family import Family
from ale_jax.model.families.fields import Fields


def read(fields: Fields) -> PolicyShape:
    if fields.get("model_type") == "ministral":
        types = layer_types(fields)
    else:
        types = [SLIDING if fields.get("sliding_window") else FULL] * num_layers(fields)
    norm, mixers = rms(fields), windowed(fields, attention(fields), types)
    return decoder(fields, [Layer(each, dense(fields), norm) for each in mixers], norm)


MISTRAL = Family("mistral", "MistralForCausalLM", read)
MINISTRAL = Family("ministral", "MinistralForCausalLM", read)

"""Mistral 7B, Nemo and Small; Ministral, whose layers may differ in their windows; and Ministral 3,
whose queries grow."""

from __future__ import annotations

import dataclasses

from ale_jax.config.architecture import Attention, Growth, Layer, PolicyShape
from ale_jax.model.families.decoder import (
    FULL,
    SLIDING,
    attention,
    decoder,
    dense,
    layer_types,
    num_layers,
    rms,
    rope_of,
    windowed,
)
from ale_jax.model.families.family import Family
from ale_jax.model.families.fields import Fields


def read(fields: Fields) -> PolicyShape:
    if fields.get("model_type") == "ministral":
        types = layer_types(fields)
    else:
        types = [SLIDING if fields.get("sliding_window") else FULL] * num_layers(fields)
    return _of(fields, attention(fields), types)


def read_ministral3(fields: Fields) -> PolicyShape:
    given, plain = fields.part("rope_parameters"), attention(fields, rope=None)
    every = given.number("original_max_position_embeddings")
    rate = given.get("llama_4_scaling_beta")
    growth = None if rate == 0 else Growth(given.number("llama_4_scaling_beta"), every)
    given.get("max_position_embeddings")  # that of the file itself counts
    rope = rope_of(fields, given, plain.head_width)
    types = [SLIDING if fields.get("sliding_window") else FULL] * num_layers(fields)
    return _of(fields, dataclasses.replace(plain, rope=rope, growth=growth), types)


def _of(fields: Fields, full: Attention, types: list[str]) -> PolicyShape:
    norm, mixers = rms(fields), windowed(fields, full, types)
    return decoder(fields, [Layer(each, dense(fields), norm) for each in mixers], norm)


MISTRAL = Family("mistral", "MistralForCausalLM", read)
MINISTRAL = Family("ministral", "MinistralForCausalLM", read)
MINISTRAL3 = Family("ministral3", "Ministral3ForCausalLM", read_ministral3)

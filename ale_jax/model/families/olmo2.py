"""OLMo 2 and 3: norms after each block, and of all queries and keys of a token at once."""

from __future__ import annotations

import dataclasses

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
    rope_of,
)
from ale_jax.model.families.family import NORMS_AFTER, Family
from ale_jax.model.families.fields import Fields


def read(fields: Fields) -> PolicyShape:
    norm, bias = rms(fields, place="after"), fields.flag("attention_bias")
    mixer = attention(fields, bias=bias, out_bias=bias, qk_norm="width")
    return decoder(fields, [Layer(mixer, dense(fields), norm)] * num_layers(fields), norm)


def read_olmo3(fields: Fields) -> PolicyShape:
    norm, bias = rms(fields, place="after"), fields.flag("attention_bias")
    mixers, ropes = {}, fields.part("rope_parameters")
    for kind in (FULL, SLIDING):
        full = attention(fields, bias=bias, out_bias=bias, qk_norm="width", rope=None)
        window = fields.count("sliding_window") if kind == SLIDING else 0
        rope = rope_of(fields, ropes.part(kind), full.head_width)
        mixers[kind] = dataclasses.replace(full, window=window, rope=rope)
    ropes.refuse_rest()
    feed = dense(fields)
    layers = [Layer(mixers[kind], feed, norm) for kind in layer_types(fields)]
    return decoder(fields, layers, norm)


OLMO2 = Family("olmo2", "Olmo2ForCausalLM", read, NORMS_AFTER)
OLMO3 = Family("olmo3", "Olmo3ForCausalLM", read_olmo3, NORMS_AFTER)

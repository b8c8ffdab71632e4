"""SmolLM3: some layers have no positions."""

from __future__ import annotations

import dataclasses

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
    full = attention(fields, bias=bias, out_bias=bias)
    mixers = windowed(fields, full, layer_types(fields))
    has_rope = fields.items("no_rope_layers")  # 1 for a layer that has one
    for name in ("use_sliding_window", "max_window_layers", "no_rope_layer_interval"):
        fields.get(name)  # the lists say it
    fields.get("pretraining_tp")
    if len(has_rope) != len(mixers) or not all(each in (0, 1) for each in has_rope):
        raise fields.error(f"no_rope_layers {has_rope!r:.60} must have a 0 or 1 for each layer")
    mixers = [
        each if has else dataclasses.replace(each, rope=None)
        for each, has in zip(mixers, has_rope, strict=True)
    ]
    norm, feed = rms(fields), dense(fields, bias=fields.flag("mlp_bias"))
    return decoder(fields, [Layer(each, feed, norm) for each in mixers], norm)


SMOLLM3 = Family("smollm3", "SmolLM3ForCausalLM", read)

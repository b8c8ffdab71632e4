"""EXAONE 4.0: norms after each block; full layers among sliding ones have no positions."""

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
from ale_jax.model.families.family import NORMS_AFTER, Family
from ale_jax.model.families.fields import Fields


def read(fields: Fields) -> PolicyShape:
    fields.get("sliding_window_pattern")  # the types say it
    is_mixed = fields.get("sliding_window") is not None
    mixers = windowed(fields, attention(fields, qk_norm="head"), layer_types(fields))
    if is_mixed:
        mixers = [m if m.window else dataclasses.replace(m, rope=None) for m in mixers]
    norm, feed = rms(fields, place="after"), dense(fields)
    return decoder(fields, [Layer(each, feed, norm) for each in mixers], norm)


EXAONE4 = Family("exaone4", "Exaone4ForCausalLM", read, NORMS_AFTER)

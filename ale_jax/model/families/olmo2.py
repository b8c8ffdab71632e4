"""OLMo 2 and 3: norms after each block, and of all queries and keys of a token at once."""

from __future__ import annotations

from ale_jax.config.architecture import Layer, PolicyShape
from ale_jax.model.families.decoder import (
    attention,
    decoder,
    dense,
    num_layers,
    rms,
    rotated,
)
from ale_jax.model.families.family import NORMS_AFTER, Family
from ale_jax.model.families.fields import Fields


def read(fields: Fields) -> PolicyShape:
    norm, bias = rms(fields, place="after"), fields.flag("attention_bias")
    mixer = attention(fields, bias=bias, out_bias=bias, qk_norm="width")
    return decoder(fields, [Layer(mixer, dense(fields), norm)] * num_layers(fields), norm)


def read_olmo3(fields: Fields) -> PolicyShape:
    norm, bias = rms(fields, place="after"), fields.flag("attention_bias")
    full, feed = (
        attention(fields, bias=bias, out_bias=bias, qk_norm="width", rope=None),
        dense(fields),
    )
    return decoder(fields, [Layer(each, feed, norm) for each in rotated(fields, full)], norm)


OLMO2 = Family("olmo2", "Olmo2ForCausalLM", read, NORMS_AFTER)
OLMO3 = Family("olmo3", "Olmo3ForCausalLM", read_olmo3, NORMS_AFTER)

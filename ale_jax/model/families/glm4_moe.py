"""GLM-4.5 to 4.7, and what has its mixtures: Solar Open and dots.llm1."""

from __future__ import annotations

from collections.abc import Sequence

from ale_jax.config.architecture import Layer, Mixer, PolicyShape
from ale_jax.model.families.decoder import (
    DENSE,
    SPARSE,
    attention,
    decoder,
    dense,
    grouped_experts,
    layer_types,
    num_layers,
    rms,
    windowed,
)
from ale_jax.model.families.family import NEXT_LAYER, Family
from ale_jax.model.families.fields import Fields


def read(fields: Fields) -> PolicyShape:
    fields.get("num_nextn_predict_layers")  # of what only speeds up decoding
    mixer = attention(
        fields,
        partial=True,
        bias=fields.flag("attention_bias"),
        qk_norm="head" if fields.flag("use_qk_norm") else "",
    )
    return mixture(fields, [mixer] * num_layers(fields))


def read_solar(fields: Fields) -> PolicyShape:
    mixer = attention(fields, bias=fields.flag("attention_bias"))
    return mixture(fields, [mixer] * num_layers(fields))


def read_dots(fields: Fields) -> PolicyShape:
    bias = fields.flag("attention_bias")
    full = attention(fields, bias=bias, out_bias=bias, qk_norm="head")
    fields.get("max_window_layers")  # the types say it
    return mixture(fields, windowed(fields, full, layer_types(fields)))


def mixture(fields: Fields, mixers: Sequence[Mixer], types: Sequence[str] = ()) -> PolicyShape:
    """Returns the shape of layers with experts, but for the first ones, or for those of `types`
    that are dense."""
    shared = fields.count("n_shared_experts") if fields.get("n_shared_experts") else 0
    num = "n_routed_experts" if fields.get("n_routed_experts") else "num_local_experts"
    experts = grouped_experts(fields, num, shared)
    norm, first = rms(fields), fields.get("first_k_dense_replace", 0)
    fields.get("intermediate_size")
    types = types or [DENSE if i < first else SPARSE for i in range(len(mixers))]
    feeds = [dense(fields) if each == DENSE else experts for each in types]
    layers = [Layer(*both, norm) for both in zip(mixers, feeds, strict=True)]
    return decoder(fields, layers, norm)


GLM4_MOE = Family("glm4_moe", "Glm4MoeForCausalLM", read, further=NEXT_LAYER)
SOLAR_OPEN = Family("solar_open", "SolarOpenForCausalLM", read_solar)
DOTS1 = Family("dots1", "Dots1ForCausalLM", read_dots)

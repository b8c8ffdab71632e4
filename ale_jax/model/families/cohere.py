"""Command R and R+, and Command R7B, whose layers without a window have no positions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ale_jax.config.architecture import Attention, Layer, Norm, PolicyShape
from ale_jax.model.families.decoder import (
    attention,
    decoder,
    dense,
    interleaved,
    layer_types,
    num_layers,
    windowed,
)
from ale_jax.model.families.family import LAYER, Family, Storage
from ale_jax.model.families.fields import Fields

# What published configurations say beside what transformers reads.
ONLY: dict[str, Any] = {
    "use_parallel_block": True,
    "use_gated_activation": True,
    "use_qk_norm": False,
    "rotary_pct": 1.0,
    "position_embedding_type": "rope_gptj",
    "order_of_interleaved_layers": "local_attn_first",
}


def read(fields: Fields) -> PolicyShape:
    bias, each = fields.flag("attention_bias"), fields.flag("use_qk_norm", False)
    mixer = attention(fields, bias=bias, out_bias=bias, qk_norm="each" if each else "")
    return _parallel(fields, [interleaved(mixer)] * num_layers(fields))


def read_cohere2(fields: Fields) -> PolicyShape:
    for name, value in ONLY.items():
        fields.require(name, value)
    for name in ("layer_switch", "sliding_window_pattern"):  # layer_types says it
        fields.get(name)
    for name in ("use_embedding_sharing", "use_parallel_embedding"):  # see tie_word_embeddings
        fields.get(name)
    bias = fields.flag("attention_bias")
    full = interleaved(attention(fields, bias=bias, out_bias=bias))
    mixers = windowed(fields, full, layer_types(fields))
    return _parallel(
        fields, [each if each.window else dataclasses.replace(each, rope=None) for each in mixers]
    )


def _parallel(fields: Fields, mixers: Sequence[Attention]) -> PolicyShape:
    fields.get("pretraining_tp")
    fields.get("model_max_length")
    norm, feed = Norm(fields.number("layer_norm_eps"), centred=True), dense(fields)
    layers = [Layer(each, feed, norm, parallel=True) for each in mixers]
    return decoder(fields, layers, norm, hidden_scale=fields.number("logit_scale"))


EACH = ((0,), (1,))
COHERE = Family(
    "cohere",
    "CohereForCausalLM",
    read,
    {
        "q_norm_NH": Storage(LAYER + "self_attn.q_norm.weight", EACH),
        "k_norm_GH": Storage(LAYER + "self_attn.k_norm.weight", EACH),
    },
)
COHERE2 = Family("cohere2", "Cohere2ForCausalLM", read_cohere2)

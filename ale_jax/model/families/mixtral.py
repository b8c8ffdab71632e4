"""Mixtral."""

from __future__ import annotations

from ale_jax.config.architecture import Layer, PolicyShape
from ale_jax.model.families.decoder import (
    FULL,
    SLIDING,
    attention,
    decoder,
    num_layers,
    rms,
    silu_experts,
    windowed,
)
from ale_jax.model.families.family import LAYER, MATRIX, Family, Storage
from ale_jax.model.families.fields import Fields


def read(fields: Fields) -> PolicyShape:
    types = [SLIDING if fields.get("sliding_window") else FULL] * num_layers(fields)
    experts = silu_experts(fields, "num_local_experts", "intermediate_size")
    norm, mixers = rms(fields), windowed(fields, attention(fields), types)
    return decoder(fields, [Layer(each, experts, norm) for each in mixers], norm)


EXPERTS = LAYER + "block_sparse_moe.experts.{expert}."
TENSORS = {
    "router_DE": Storage(LAYER + "block_sparse_moe.gate.weight", MATRIX),
    "gate_EDF": Storage(EXPERTS + "w1.weight", ((2,), (1,))),
    "up_EDF": Storage(EXPERTS + "w3.weight", ((2,), (1,))),
    "down_EFD": Storage(EXPERTS + "w2.weight", ((2,), (1,))),
}
MIXTRAL = Family("mixtral", "MixtralForCausalLM", read, TENSORS)

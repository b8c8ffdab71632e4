"""MiniMax-M2."""

from __future__ import annotations

from ale_jax.config.architecture import Layer, PolicyShape
from ale_jax.model.families.decoder import attention, decoder, num_layers, rms, silu_experts
from ale_jax.model.families.family import LAYER, VECTOR, Family, Storage
from ale_jax.model.families.fields import Fields
from ale_jax.model.families.mixtral import TENSORS


def read(fields: Fields) -> PolicyShape:
    experts = silu_experts(
        fields, "num_local_experts", "intermediate_size", score="sigmoid", choice_bias=True
    )
    norm = rms(fields)
    layer = Layer(attention(fields, partial=True, qk_norm="width"), experts, norm)
    return decoder(fields, [layer] * num_layers(fields), norm)


MINIMAX_M2 = Family(
    "minimax_m2",
    "MiniMaxM2ForCausalLM",
    read,
    {
        **TENSORS,
        "router_bias_E": Storage(LAYER + "block_sparse_moe.e_score_correction_bias", VECTOR),
    },
)

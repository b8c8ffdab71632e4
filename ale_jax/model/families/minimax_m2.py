"""MiniMax-M2."""

from __future__ import annotations

from ale_jax.config.architecture import Layer, PolicyShape
from ale_jax.model.families.decoder import attention, decoder, num_layers, rms, silu_experts
from ale_jax.model.families.family import LAYER, VECTOR, Family, Storage
from ale_jax.model.families.fields import Fields
from ale_jax.model.families.mixtral import TENSORS


def read(fields: Fields) -> PolicyShape:
    _check(fields)
    experts = silu_experts(
        fields, "num_local_experts", "intermediate_size", score="sigmoid", choice_bias=True
    )
    norm, mixer = rms(fields), attention(fields, partial=True, qk_norm="width")
    assert mixer.rope is not None
    fields.require("rotary_dim", mixer.rope.width)
    layer = Layer(mixer, experts, norm)
    return decoder(fields, [layer] * num_layers(fields), norm)


def _check(fields: Fields) -> None:
    """Reads what the authors' own code has beside that of transformers."""
    for name, only in (
        *(("use_qk_norm", True), ("qk_norm_type", "per_layer"), ("scoring_func", "sigmoid")),
        *(("use_routing_bias", True), ("shared_intermediate_size", 0)),
        *((f"layernorm_{kind}_beta", 1.0) for kind in KINDS),
    ):
        fields.require(name, only)
    if set(fields.items("attn_type_list")) - {1}:
        raise fields.error("attn_type_list has others than 1: only full attention is supported")
    for name in ("mlp_intermediate_size", "shared_moe_mode", "sliding_window"):
        fields.get(name)  # of layers that it has not
    for name in ("use_mtp", "num_mtp_modules", "mtp_transformer_layers"):
        fields.get(name)  # of what only speeds up decoding


KINDS = ("full_attention", "linear_attention", "mlp")
MINIMAX_M2 = Family(
    "minimax_m2",
    "MiniMaxM2ForCausalLM",
    read,
    {
        **TENSORS,
        "router_bias_E": Storage(LAYER + "block_sparse_moe.e_score_correction_bias", VECTOR),
    },
)

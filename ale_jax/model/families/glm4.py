"""GLM-4, the older layers with norms before each block, the newer ones on both sides."""

from __future__ import annotations

from ale_jax.config.architecture import Layer, PolicyShape
from ale_jax.model.families.decoder import (
    attention,
    decoder,
    dense,
    interleaved,
    num_layers,
    rms,
)
from ale_jax.model.families.family import LAYER, MATRIX, VECTOR, Family, Storage
from ale_jax.model.families.fields import Fields


def read(fields: Fields) -> PolicyShape:
    mixer = interleaved(attention(fields, partial=True, bias=fields.flag("attention_bias")))
    norm = rms(fields, place="both" if fields.get("model_type") == "glm4" else "before")
    return decoder(fields, [Layer(mixer, dense(fields), norm)] * num_layers(fields), norm)


GATE_UP = LAYER + "mlp.gate_up_proj.weight"
GLM4 = Family(
    "glm4",
    "Glm4ForCausalLM",
    read,
    {
        "attn_after_norm_D": Storage(LAYER + "post_self_attn_layernorm.weight", VECTOR),
        "ffn_after_norm_D": Storage(LAYER + "post_mlp_layernorm.weight", VECTOR),
        "gate_DF": Storage(GATE_UP, MATRIX, ("gate_DF", "up_DF")),
        "up_DF": Storage(GATE_UP, MATRIX, ("gate_DF", "up_DF")),
    },
)
GLM = Family("glm", "GlmForCausalLM", read, GLM4.tensors)

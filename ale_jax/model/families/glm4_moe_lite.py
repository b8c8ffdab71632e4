"""GLM 4.7 Flash: latent attention, with GLM 4.5's experts."""

from __future__ import annotations

from ale_jax.config.architecture import PolicyShape
from ale_jax.model.families.decoder import feed_types
from ale_jax.model.families.family import NEXT_LAYER, Family
from ale_jax.model.families.fields import Fields
from ale_jax.model.families.glm4_moe import mixture
from ale_jax.model.families.latent import LATENT, either


def read(fields: Fields) -> PolicyShape:
    for name in ("num_nextn_predict_layers", "pretraining_tp"):
        fields.get(name)
    types = feed_types(fields)
    return mixture(fields, [either(fields)] * len(types), types)


GLM4_MOE_LITE = Family("glm4_moe_lite", "Glm4MoeLiteForCausalLM", read, LATENT, NEXT_LAYER)

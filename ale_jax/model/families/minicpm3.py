"""MiniCPM 3: latent attention, with multipliers that depend on depth and width."""

from __future__ import annotations

import math

from ale_jax.config.architecture import Layer, PolicyShape
from ale_jax.model.families.decoder import decoder, dense, num_layers, rms
from ale_jax.model.families.family import Family
from ale_jax.model.families.fields import Fields
from ale_jax.model.families.latent import LATENT, latent


def read(fields: Fields) -> PolicyShape:
    fields.get("pretraining_tp")
    fields.require("mlp_bias", False)
    norm, layers = rms(fields), num_layers(fields)
    residual = fields.number("scale_depth") / math.sqrt(layers)
    layer = Layer(latent(fields, interleaved=False), dense(fields), norm, residual)
    return decoder(
        fields,
        [layer] * layers,
        norm,
        embed_scale=fields.number("scale_emb"),
        hidden_scale=fields.number("dim_model_base") / fields.count("hidden_size"),
    )


MINICPM3 = Family("minicpm3", "MiniCPM3ForCausalLM", read, LATENT)

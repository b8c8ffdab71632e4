"""Youtu: latent attention, and no experts."""

from __future__ import annotations

from ale_jax.config.architecture import Layer, PolicyShape
from ale_jax.model.families.decoder import decoder, dense, num_layers, rms
from ale_jax.model.families.family import Family
from ale_jax.model.families.fields import Fields
from ale_jax.model.families.latent import LATENT, either


def read(fields: Fields) -> PolicyShape:
    fields.get("embedding_initializer_range")
    fields.require("pad_token_id", None)  # transformers clears its row when it reads weights
    norm = rms(fields)
    layer = Layer(either(fields), dense(fields), norm)
    return decoder(fields, [layer] * num_layers(fields), norm)


YOUTU = Family("youtu", "YoutuForCausalLM", read, LATENT)

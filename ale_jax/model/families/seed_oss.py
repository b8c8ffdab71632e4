"""Seed-OSS."""

from __future__ import annotations

from ale_jax.config.architecture import Layer, PolicyShape
from ale_jax.model.families.decoder import attention, decoder, dense, num_layers, rms
from ale_jax.model.families.family import Family
from ale_jax.model.families.fields import Fields


def read(fields: Fields) -> PolicyShape:
    fields.require("pretraining_tp", 1)
    mixer = attention(
        fields, bias=fields.flag("attention_bias"), out_bias=fields.flag("attention_out_bias")
    )
    feed = dense(fields, bias=fields.flag("mlp_bias"))
    norm = rms(fields)
    return decoder(fields, [Layer(mixer, feed, norm)] * num_layers(fields), norm)


SEED_OSS = Family("seed_oss", "SeedOssForCausalLM", read)

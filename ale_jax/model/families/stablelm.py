"""StableLM: layer norms, and a rotation of a part of each head; some have parallel blocks."""

from __future__ import annotations

from ale_jax.config.architecture import Layer, Norm, PolicyShape
from ale_jax.model.families.decoder import attention, decoder, dense, num_layers
from ale_jax.model.families.family import Family
from ale_jax.model.families.fields import Fields


def read(fields: Fields) -> PolicyShape:
    fields.require("qk_layernorm", False)
    mixer = attention(fields, partial=True, bias=fields.flag("use_qkv_bias"))
    norm = Norm(fields.number("layer_norm_eps"), centred=True, bias=True)
    layer = Layer(mixer, dense(fields), norm, parallel=fields.flag("use_parallel_residual"))
    return decoder(fields, [layer] * num_layers(fields), norm)


STABLELM = Family("stablelm", "StableLmForCausalLM", read)

"""StarCoder 2: layer norms, biases everywhere, and no gates."""

from __future__ import annotations

from ale_jax.config.architecture import Layer, Norm, PolicyShape
from ale_jax.model.families.decoder import (
    FULL,
    SLIDING,
    attention,
    decoder,
    dense,
    num_layers,
    windowed,
)
from ale_jax.model.families.family import LAYER, MATRIX, VECTOR, Family, Storage
from ale_jax.model.families.fields import Fields


def read(fields: Fields) -> PolicyShape:
    bias = fields.flag("use_bias")
    types = [SLIDING if fields.get("sliding_window") else FULL] * num_layers(fields)
    mixers = windowed(fields, attention(fields, bias=bias, out_bias=bias), types)
    feed = dense(fields, bias=bias, gated=False)
    norm = Norm(fields.number("norm_epsilon"), centred=True, bias=True)
    fields.get("embedding_dropout")
    only = {"mlp_type": "default", "norm_type": "layer_norm", "rms_norm_eps": norm.eps}
    for name, value in only.items():  # which published configurations have, too
        fields.require(name, value)
    return decoder(fields, [Layer(each, feed, norm) for each in mixers], norm)


FEED = {
    "up_DF": Storage(LAYER + "mlp.c_fc.weight", MATRIX),
    "down_FD": Storage(LAYER + "mlp.c_proj.weight", MATRIX),
    "up_bias_F": Storage(LAYER + "mlp.c_fc.bias", VECTOR),
    "down_bias_D": Storage(LAYER + "mlp.c_proj.bias", VECTOR),
}
STARCODER2 = Family("starcoder2", "Starcoder2ForCausalLM", read, FEED)

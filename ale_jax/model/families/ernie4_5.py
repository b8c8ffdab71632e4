"""ERNIE 4.5, dense or with experts."""

from __future__ import annotations

from ale_jax.config.architecture import Attention, Layer, PolicyShape
from ale_jax.model.families.decoder import (
    attention,
    decoder,
    dense,
    interleaved,
    num_layers,
    rms,
    silu_experts,
)
from ale_jax.model.families.family import LAYER, Family, Storage
from ale_jax.model.families.fields import Fields


def read(fields: Fields) -> PolicyShape:
    norm, bias = rms(fields), fields.flag("use_bias")
    layer = Layer(_attention(fields, bias), dense(fields, bias=bias), norm)
    return decoder(fields, [layer] * num_layers(fields), norm)


def read_moe(fields: Fields) -> PolicyShape:
    norm, bias, width = rms(fields), fields.flag("use_bias"), fields.count("moe_intermediate_size")
    fields.require("moe_norm_min", 1e-12)  # weights are divided by no less: no softmax comes near
    shared = fields.get("moe_num_shared_experts")
    experts = silu_experts(
        fields,
        "moe_num_experts",
        "moe_intermediate_size",
        per_token="moe_k",
        choice_bias=True,
        shared=width * fields.count("moe_num_shared_experts") if shared else 0,
    )
    first, last = fields.get("moe_layer_start_index"), fields.get("moe_layer_end_index")
    step, mixer, plain = (
        fields.count("moe_layer_interval"),
        _attention(fields, bias),
        dense(fields, bias=bias),
    )
    layers = [
        Layer(mixer, experts if first <= i <= last and (i + 1) % step == 0 else plain, norm)
        for i in range(num_layers(fields))
    ]
    if bias and experts.shared:
        raise fields.error("use_bias true is not supported beside shared experts")
    return decoder(fields, layers, norm)


def _attention(fields: Fields, bias: bool) -> Attention:
    return interleaved(attention(fields, bias=bias, out_bias=bias))


ERNIE4_5 = Family("ernie4_5", "Ernie4_5ForCausalLM", read)
ERNIE4_5_MOE = Family(
    "ernie4_5_moe",
    "Ernie4_5_MoeForCausalLM",
    read_moe,
    {
        "router_bias_E": Storage(LAYER + "mlp.moe_statics.e_score_correction_bias", ((), (0,))),
    },
)

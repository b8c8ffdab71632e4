"""gpt-oss: sinks, alternating windows, and experts with biases and a clamped gate."""

from __future__ import annotations

from ale_jax.config.architecture import ClampedSwiglu, Layer, PolicyShape
from ale_jax.model.families.decoder import (
    attention,
    decoder,
    layer_types,
    rms,
    silu_experts,
    windowed,
)
from ale_jax.model.families.family import LAYER, MATRIX, VECTOR, Family, Storage
from ale_jax.model.families.fields import Fields


def read(fields: Fields) -> PolicyShape:
    bias = fields.flag("attention_bias")
    full = attention(fields, bias=bias, out_bias=bias, sinks=True)
    # The softmax over the chosen experts' scores is that over all of them, renormalised.
    experts = silu_experts(
        fields,
        "num_local_experts",
        "intermediate_size",
        gate=ClampedSwiglu(fields.number("swiglu_alpha"), fields.number("swiglu_limit")),
        bias=True,
        router_bias=True,
    )
    fields.require("experts_per_token", experts.per_token)  # other names for the same numbers
    fields.get("initial_context_length")
    norm, mixers = rms(fields), windowed(fields, full, layer_types(fields))
    return decoder(fields, [Layer(each, experts, norm) for each in mixers], norm)


EXPERTS = LAYER + "mlp.experts."
BOTH, BIASES = ("gate_EDF", "up_EDF"), ("gate_bias_EF", "up_bias_EF")
STACKED, ROWS = ((0,), (1,), (2,)), ((0,), (1,))
GPT_OSS = Family(
    "gpt_oss",
    "GptOssForCausalLM",
    read,
    {
        "sink_N": Storage(LAYER + "self_attn.sinks", VECTOR),
        "router_DE": Storage(LAYER + "mlp.router.weight", MATRIX),
        "router_logit_bias_E": Storage(LAYER + "mlp.router.bias", VECTOR),
        "down_EFD": Storage(EXPERTS + "down_proj", STACKED),
        "down_bias_ED": Storage(EXPERTS + "down_proj_bias", ROWS),
    }
    | {each: Storage(EXPERTS + "gate_up_proj", STACKED, BOTH, 2, True) for each in BOTH}
    | {each: Storage(EXPERTS + "gate_up_proj_bias", ROWS, BIASES, 1, True) for each in BIASES},
)

"""What families with latent attention share: how it is read, and the names of its tensors."""

from __future__ import annotations

import dataclasses

from ale_jax.config.architecture import Latent, YarnScaling
from ale_jax.model.families.decoder import mscale, rope, rope_part
from ale_jax.model.families.family import HEADS_OUT, LAYER, MATRIX, VECTOR, Storage
from ale_jax.model.families.fields import Fields


def latent(fields: Fields, *, interleaved: bool) -> Latent:
    """Returns the attention of every layer."""
    heads, nope = fields.count("num_attention_heads"), fields.count("qk_nope_head_dim")
    turned = fields.count("qk_rope_head_dim")
    for name, only in {"num_key_value_heads": heads, "head_dim": turned}.items():
        fields.require(name, only)
    fields.require("qk_head_dim", nope + turned)
    bias, positions = fields.flag("attention_bias"), rope(fields, turned)
    scale = (nope + turned) ** -0.5
    slope = rope_part(fields).get("mscale_all_dim")
    if slope and isinstance(positions.scaling, YarnScaling):
        slope = rope_part(fields).number("mscale_all_dim")
        scale *= mscale(positions.scaling.factor, slope) ** 2
    return Latent(
        heads,
        q_rank=fields.count("q_lora_rank") if fields.get("q_lora_rank") is not None else 0,
        kv_rank=fields.count("kv_lora_rank"),
        nope_width=nope,
        value_width=fields.count("v_head_dim"),
        scale=scale,
        rope=dataclasses.replace(positions, interleaved=interleaved),
        bias=bias,
        out_bias=bias,
    )


def either(fields: Fields) -> Latent:
    """The same, with the pairs of the rotation as the file says."""
    return latent(fields, interleaved=fields.flag("rope_interleave", False))


ATTENTION = LAYER + "self_attn."
LATENT = {
    "q_down_DO": Storage(ATTENTION + "q_a_proj.weight", MATRIX),
    "q_down_bias_O": Storage(ATTENTION + "q_a_proj.bias", VECTOR),
    "q_norm_O": Storage(ATTENTION + "q_a_layernorm.weight", VECTOR),
    "q_up_ONH": Storage(ATTENTION + "q_b_proj.weight", HEADS_OUT),
    "kv_down_DO": Storage(ATTENTION + "kv_a_proj_with_mqa.weight", MATRIX),
    "kv_down_bias_O": Storage(ATTENTION + "kv_a_proj_with_mqa.bias", VECTOR),
    "kv_norm_O": Storage(ATTENTION + "kv_a_layernorm.weight", VECTOR),
    "kv_up_ONH": Storage(ATTENTION + "kv_b_proj.weight", HEADS_OUT),
}

"""DeepSeek V2 and V3, and what has their attention: Sarvam, GLM 4.7 Flash, Youtu, MiniCPM 3."""

from __future__ import annotations

import dataclasses
import math

from ale_jax.config.architecture import Experts, Latent, Layer, PolicyShape, YarnScaling
from ale_jax.model.families.decoder import (
    decoder,
    dense,
    feed_types,
    mscale,
    num_layers,
    rms,
    rope,
    rope_part,
    silu_experts,
)
from ale_jax.model.families.family import (
    HEADS_OUT,
    LAYER,
    MATRIX,
    NEXT_LAYER,
    VECTOR,
    Family,
    Storage,
)
from ale_jax.model.families.fields import Fields
from ale_jax.model.families.glm4 import mixture


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


def _either(fields: Fields) -> Latent:
    return latent(fields, interleaved=fields.flag("rope_interleave", False))


def read_v3(fields: Fields) -> PolicyShape:
    _check_published(fields, topk_method="noaux_tc", scoring_func="sigmoid")
    return mixture(fields, [_either(fields)] * num_layers(fields))


def read_v2(fields: Fields) -> PolicyShape:
    _check_published(fields, scoring_func="softmax", norm_topk_prob=False, mlp_bias=False)
    mixer, norm, experts = latent(fields, interleaved=True), rms(fields), _of_groups(fields)
    first = fields.get("first_k_dense_replace", 0)
    feeds = [dense(fields) if i < first else experts for i in range(num_layers(fields))]
    fields.get("intermediate_size")
    return decoder(fields, [Layer(mixer, feed, norm) for feed in feeds], norm)


def _of_groups(fields: Fields) -> Experts:
    method = fields.get("topk_method")
    if method not in ("greedy", "group_limited_greedy"):
        raise fields.error(f"topk_method {method!r:.40} is not one of greedy, group_limited_greedy")
    groups, best = fields.get("n_group"), fields.get("topk_group")
    if method == "group_limited_greedy":
        groups, best = fields.count("n_group"), fields.count("topk_group")
    else:
        groups = best = 1
    return silu_experts(
        fields,
        "n_routed_experts",
        "moe_intermediate_size",
        renormalise=False,
        scale=fields.number("routed_scaling_factor"),
        groups=groups,
        top_groups=best,
        merit=1,
        shared=fields.count("moe_intermediate_size") * fields.count("n_shared_experts"),
    )


def _check_published(fields: Fields, **only: object) -> None:
    """Reads what published configurations say of their layers beside what transformers reads."""
    for name, value in {**only, "moe_layer_freq": 1}.items():
        fields.require(name, value)
    for name in ("num_nextn_predict_layers", "num_mtp_layers", "pretraining_tp", "ep_size"):
        fields.get(name)  # of what only speeds up decoding or training
    for name in ("aux_loss_alpha", "seq_aux"):
        fields.get(name)


def read_lite(fields: Fields) -> PolicyShape:
    for name in ("num_nextn_predict_layers", "pretraining_tp"):
        fields.get(name)
    types = feed_types(fields)
    return mixture(fields, [_either(fields)] * len(types), types)


def read_youtu(fields: Fields) -> PolicyShape:
    fields.get("embedding_initializer_range")
    fields.require("pad_token_id", None)  # transformers clears its row when it reads weights
    norm = rms(fields)
    layer = Layer(_either(fields), dense(fields), norm)
    return decoder(fields, [layer] * num_layers(fields), norm)


def read_minicpm(fields: Fields) -> PolicyShape:
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
DEEPSEEK_V2 = Family("deepseek_v2", "DeepseekV2ForCausalLM", read_v2, LATENT)
DEEPSEEK_V3 = Family("deepseek_v3", "DeepseekV3ForCausalLM", read_v3, LATENT, NEXT_LAYER)
SARVAM_MLA = Family("sarvam_mla", "DeepseekV3ForCausalLM", read_v3, LATENT)
GLM4_MOE_LITE = Family("glm4_moe_lite", "Glm4MoeLiteForCausalLM", read_lite, LATENT, NEXT_LAYER)
YOUTU = Family("youtu", "YoutuForCausalLM", read_youtu, LATENT)
MINICPM3 = Family("minicpm3", "MiniCPM3ForCausalLM", read_minicpm, LATENT)

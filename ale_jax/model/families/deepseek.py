"""DeepSeek V2 and V3, and Sarvam, which has V3's layers."""

from __future__ import annotations

from ale_jax.config.architecture import Experts, Layer, PolicyShape
from ale_jax.model.families.decoder import decoder, dense, num_layers, rms, silu_experts
from ale_jax.model.families.family import NEXT_LAYER, Family
from ale_jax.model.families.fields import Fields
from ale_jax.model.families.glm4_moe import mixture
from ale_jax.model.families.latent import LATENT, either, latent


def read_v3(fields: Fields) -> PolicyShape:
    _check_published(fields, topk_method="noaux_tc", scoring_func="sigmoid")
    return mixture(fields, [either(fields)] * num_layers(fields))


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


DEEPSEEK_V2 = Family("deepseek_v2", "DeepseekV2ForCausalLM", read_v2, LATENT)
DEEPSEEK_V3 = Family("deepseek_v3", "DeepseekV3ForCausalLM", read_v3, LATENT, NEXT_LAYER)
SARVAM_MLA = Family("sarvam_mla", "DeepseekV3ForCausalLM", read_v3, LATENT)

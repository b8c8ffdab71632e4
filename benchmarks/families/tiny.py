"""A tiny random model of each family, as transformers makes and saves it."""

import re

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from benchmarks.families.tiny_wrapped import OF_WRAPPER

VOCAB = 96
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WIDE = {"head_dim": 16}  # wider than hidden_size / num_attention_heads
MULTIPLIED = {
    "embedding_multiplier": 3.0,
    "logits_scaling": 4.0,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.1,
}
BOTH = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
QWEN_EXPERTS = {"moe_intermediate_size": 24, "num_experts": 8, "num_experts_per_tok": 2}
GLM_EXPERTS = {
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.5,
    "norm_topk_prob": True,
}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 12,
    "layer_types": ["linear_attention", "full_attention"],
}
CAPPED = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 20,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
}
DEEPSEEK_YARN = YARN | {"rope_theta": 1e4, "mscale": 0.7, "mscale_all_dim": 0.9}
# model_type -> what its configuration has beside SIZES: all that the family can do.
OF_FAMILY = {
    "llama": WIDE | {"attention_bias": True, "mlp_bias": True},
    "cwm": WIDE | BOTH,
    "helium": {"head_dim": 8, "attention_bias": True, "mlp_bias": True},
    "qwen2": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "qwen2_moe": QWEN_EXPERTS | {"shared_expert_intermediate_size": 40},
    "qwen3": WIDE | {"rope_parameters": YARN | {"rope_theta": 1e4}},
    "qwen3_moe": WIDE | QWEN_EXPERTS | {"norm_topk_prob": True, "mlp_only_layers": [0]},
    "qwen3_next": WIDE
    | DELTA
    | QWEN_EXPERTS
    | {"shared_expert_intermediate_size": 40, "mlp_only_layers": [0], "attention_bias": True},
    "qwen3_5_text": WIDE | DELTA,
    "qwen3_5_moe_text": WIDE | DELTA | QWEN_EXPERTS | {"shared_expert_intermediate_size": 40},
    "lfm2": {"conv_bias": True, "layer_types": ["conv", "full_attention"]}
    | {"block_multiple_of": 8, "block_ffn_dim_multiplier": 1.3},
    "lfm2_moe": {"conv_bias": True, "layer_types": ["conv", "full_attention"]}
    | {"num_dense_layers": 1, "moe_intermediate_size": 24}
    | {"num_experts": 8, "num_experts_per_tok": 2, "routed_scaling_factor": 1.5},
    "cohere": {"use_qk_norm": True, "attention_bias": True, "logit_scale": 0.5},
    "cohere2": BOTH | {"attention_bias": True},
    "arcee": WIDE | {"attention_bias": True, "mlp_bias": True},
    "nemotron": WIDE | {"attention_bias": True, "mlp_bias": True},
    "jais2": WIDE | {"attention_bias": True, "mlp_bias": True},
    "starcoder2": {"sliding_window": 8},
    "stablelm": {"use_qkv_bias": True, "use_parallel_residual": True, "partial_rotary_factor": 0.5},
    "mistral": WIDE | {"sliding_window": 8},
    "ministral": WIDE | BOTH,
    "mixtral": WIDE | {"num_local_experts": 8},
    "seed_oss": WIDE | {"attention_out_bias": True},
    "smollm3": {"no_rope_layers": [1, 0]},
    "granite": MULTIPLIED | {"attention_bias": True},
    "granitemoe": MULTIPLIED | {"num_local_experts": 8},
    "ernie4_5": WIDE | {"use_bias": True},
    "ernie4_5_moe": {"moe_intermediate_size": 24, "moe_num_experts": 8, "moe_k": 2},
    "phi3": {"hidden_size": 64, "partial_rotary_factor": 0.75, "max_position_embeddings": 4096},
    "olmo2": {"attention_bias": True},
    "olmo3": BOTH,
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2},
    "flex_olmo": {"num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True},
    "exaone4": BOTH,
    "glm4": WIDE | {"partial_rotary_factor": 0.5},
    "glm": WIDE | {"partial_rotary_factor": 0.5},
    "solar_open": WIDE | GLM_EXPERTS | {"attention_bias": True},
    "dots1": GLM_EXPERTS
    | {"first_k_dense_replace": 1, "sliding_window": 8, "max_window_layers": 1},
    "glm4_moe": WIDE | GLM_EXPERTS | {"use_qk_norm": True, "partial_rotary_factor": 0.5},
    "gemma": WIDE,
    "gemma2": WIDE | CAPPED | {"sliding_window": 8, "query_pre_attn_scalar": 9},
    "vaultgemma": WIDE | CAPPED | {"sliding_window": 8, "query_pre_attn_scalar": 9},
    "internlm3": WIDE | {"attention_bias": True, "mlp_bias": True},
    "iquestcoder": WIDE | {"attention_bias": True, "mlp_bias": True},
    "ministral3": WIDE
    | {
        "rope_parameters": YARN
        | {"rope_theta": 1e4, "llama_4_scaling_beta": 0.5, "original_max_position_embeddings": 16}
    }
    | {"sliding_window": 24},
    "exaone_moe": BOTH
    | QWEN_EXPERTS
    | {"num_shared_experts": 2, "n_group": 4, "topk_group": 2, "sliding_window_pattern": 2},
    "granitemoeshared": MULTIPLIED | {"num_local_experts": 8, "shared_intermediate_size": 40},
    "granite_swa": MULTIPLIED | BOTH | {"layer_rope_theta": [0, 5e3]},
    "hyperclovax": MULTIPLIED | {"attention_bias": True},
    "mellum": WIDE
    | BOTH
    | QWEN_EXPERTS
    | {
        "mlp_layer_types": ["dense", "sparse"],
        "rope_parameters": {
            "full_attention": YARN | {"rope_theta": 1e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "gemma3_text": WIDE | BOTH | {"query_pre_attn_scalar": 9, "final_logit_softcapping": 3.0},
    "gemma4_text": WIDE
    | BOTH
    | {"global_head_dim": 24, "num_global_key_value_heads": 1, "attention_k_eq_v": True}
    | {"hidden_size_per_layer_input": 0, "final_logit_softcapping": 3.0},
    "gpt_oss": WIDE
    | BOTH
    | {"num_local_experts": 8, "num_experts_per_tok": 2, "swiglu_limit": 0.5},
    "minimax_m2": WIDE | {"num_local_experts": 8, "num_experts_per_tok": 2},
    "deepseek_v2": LATENT
    | GLM_EXPERTS
    | {"norm_topk_prob": False, "topk_method": "group_limited_greedy", "first_k_dense_replace": 1},
    "deepseek_v3": LATENT
    | GLM_EXPERTS
    | {"first_k_dense_replace": 1, "attention_bias": True, "rope_parameters": DEEPSEEK_YARN},
    "glm4_moe_lite": LATENT | GLM_EXPERTS | {"q_lora_rank": None, "rope_interleave": False},
    "sarvam_mla": LATENT | GLM_EXPERTS | {"q_lora_rank": None, "n_group": 1, "topk_group": 1},
    "youtu": LATENT | {"v_head_dim": 28, "pad_token_id": None},
    "minicpm3": LATENT | {"scale_depth": 1.3, "scale_emb": 3, "dim_model_base": 16},
}
# Of the norms of these, the weight is what is added to 1.
ADDED_TO_ONE = (
    *("gemma", "gemma2", "vaultgemma", "gemma3_text"),
    "nemotron",
    *("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
)


def make_config(family, **changes):
    """changes: of fields, for a model with a tower for images of the whole."""
    if family not in OF_WRAPPER:
        return CONFIG_MAPPING[family](**SIZES | OF_FAMILY[family] | changes)
    of_text, own, tower = OF_WRAPPER[family]
    parts = {"text_config": SIZES | OF_FAMILY[of_text] | own, "vision_config": tower}
    whole = {"image_token_id": VOCAB - 1, "tie_word_embeddings": False}
    return CONFIG_MAPPING[family](**parts | whole | changes)


def make_model(family, **changes):
    """With every weight drawn at random: as they begin, a forgotten norm or bias would not show."""
    config = make_config(family, **changes)
    torch.manual_seed(0)
    model = class_of(family).from_config(config, attn_implementation="eager").eval()
    added_to_one = OF_WRAPPER.get(family, (family,))[0] in ADDED_TO_ONE
    about = 0.0 if added_to_one else 1.0
    state = [*model.named_parameters(), *model.named_buffers()]
    with torch.no_grad():
        for name, weight in state:
            if weight.is_floating_point() and not re.search("inv_freq|embed_scale", name):
                weight.normal_(mean=about if "norm" in name else 0.0, std=0.2)
    return model


def class_of(family):
    return AutoModelForImageTextToText if family in OF_WRAPPER else AutoModelForCausalLM


def their_logits(model, tokens_BT):
    """Transformers' logits, [B,T,V]."""
    with torch.no_grad():
        return model(torch.from_numpy(np.asarray(tokens_BT)).long()).logits.numpy()

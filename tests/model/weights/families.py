"""Small random models of every family, made and saved by transformers itself."""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from ale_jax.model.params import is_param, param_table
from tests.model.shapes import DENSE, LLAMA, MIXED, QWEN2, changed

# No defaults of theirs: a field that is not carried over would not show.
THETA, EPS, POSITIONS = 20_000.0, 1e-4, 640
_SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 48,
    "rms_norm_eps": EPS,
    "max_position_embeddings": POSITIONS,
}
_EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
    "output_router_logits": True,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": THETA,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_ROPE = {"rope_type": "default", "rope_theta": THETA}
_UPCYCLED = {"shared_expert_intermediate_size": 0, "mlp_only_layers": [0], **_EXPERTS}


def _like(shape, **changes):
    return changed(shape, rope_theta=THETA, norm_eps=EPS, max_positions=POSITIONS, **changes)


# Name -> the shape that we should read, their class, their configuration.
FAMILIES = {
    "qwen3_moe": (
        _like(MIXED),
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig(
            **_SIZES,
            **_EXPERTS,
            mlp_only_layers=[0],
            rope_parameters=_ROPE,
            tie_word_embeddings=True,
        ),
    ),
    "qwen3": (
        _like(DENSE),
        Qwen3ForCausalLM,
        Qwen3Config(**_SIZES, rope_parameters=_ROPE),
    ),
    "qwen2": (
        _like(QWEN2),
        Qwen2ForCausalLM,
        Qwen2Config(**_SIZES, rope_parameters=_ROPE),
    ),
    "llama": (
        _like(LLAMA),
        LlamaForCausalLM,
        LlamaConfig(**_SIZES, rope_parameters=_LLAMA3),
    ),
    "upcycled_qwen2": (
        _like(MIXED, qk_norm=False, qkv_bias=True, tie_embeddings=False),
        Qwen2MoeForCausalLM,
        Qwen2MoeConfig(**_SIZES, **_UPCYCLED, rope_parameters=_ROPE),
    ),
    "upcycled_llama": (
        _like(MIXED, qk_norm=False, tie_embeddings=False, llama3_rope=(8.0, 1.0, 4.0, 32.0)),
        Qwen2MoeForCausalLM,
        Qwen2MoeConfig(**_SIZES, **_UPCYCLED, qkv_bias=False, rope_parameters=_LLAMA3),
    ),
}


def random_params(shape, dtype=np.float32):
    """Without a compilation, which `init_params` needs for each shape."""
    draw = np.random.default_rng(0)

    def array(param):
        return jnp.asarray(draw.normal(0.0, 0.2, param.shape).astype(dtype))

    return jax.tree.map(array, param_table(shape), is_leaf=is_param)


def make_model(name):
    """With every weight drawn at random: as they begin, a forgotten norm or bias would not show."""
    _, model_class, config = FAMILIES[name]
    torch.manual_seed(0)
    model = model_class(config).eval()
    with torch.no_grad():
        for weight_name, weight in model.named_parameters():
            weight.normal_(mean=1.0 if "norm" in weight_name else 0.0, std=0.2)
    return model


def save_model(name, folder, dtype=torch.float32, max_shard_size="40KB"):
    make_model(name).to(dtype).save_pretrained(folder, max_shard_size=max_shard_size)
    return folder


def stored_tensors(named):
    """{their name: array} under the names of checkpoints, which have one tensor per expert."""
    tensors = {}
    for name, array in named:
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[name] = np.asarray(array)
            continue
        prefix, _, kind = name.rpartition(".")
        for expert, both in enumerate(np.asarray(array)):
            parts = {kind: both}
            if kind == "gate_up_proj":
                parts = dict(zip(("gate_proj", "up_proj"), np.split(both, 2), strict=True))
            for part, each in parts.items():
                tensors[f"{prefix}.{expert}.{part}.weight"] = each
    return tensors

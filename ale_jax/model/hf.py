"""Weights and configuration under the names and layouts of transformers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ale_jax.model.params import Params
from ale_jax.model.shape import PolicyShape


def to_transformers_config(shape: PolicyShape) -> dict[str, object]:
    """The fields of its configuration class that describe the same architecture."""
    fields: dict[str, object] = {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_width,
        "intermediate_size": shape.mlp_width,
        "rope_parameters": _rope_parameters(shape),
        "rms_norm_eps": shape.norm_eps,
        "tie_word_embeddings": shape.tie_embeddings,
    }
    if shape.is_moe:
        fields |= {
            "num_experts": shape.num_experts,
            "num_experts_per_tok": shape.experts_per_token,
            "moe_intermediate_size": shape.expert_width,
            "norm_topk_prob": shape.norm_topk_prob,
            "mlp_only_layers": list(shape.dense_layers),
        }
    return fields


def _rope_parameters(shape: PolicyShape) -> dict[str, object]:
    if not shape.llama3_rope:
        return {"rope_type": "default", "rope_theta": shape.rope_theta}
    factor, low, high, trained = shape.llama3_rope
    return {
        "rope_type": "llama3",
        "rope_theta": shape.rope_theta,
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": int(trained),
    }


def to_transformers_weights(params: Params, shape: PolicyShape) -> dict[str, np.ndarray]:
    """The weights under transformers' names; its linear layers store [out, in]."""
    weights = {
        "model.embed_tokens.weight": np.asarray(params["embed_VD"]),
        "model.norm.weight": np.asarray(params["final_norm_D"]),
    }
    if not shape.tie_embeddings:
        weights["lm_head.weight"] = np.asarray(params["head_DV"]).T
    for i, layer in enumerate(params["layers"]):
        host = {name: np.asarray(a) for name, a in layer.items()}
        for name, array in _layer_to_transformers(host, shape).items():
            weights[f"model.layers.{i}.{name}"] = array
    return weights


def _layer_to_transformers(layer: Mapping[str, np.ndarray], shape: PolicyShape):
    D = shape.width
    weights = {
        "input_layernorm.weight": layer["attn_norm_D"],
        "post_attention_layernorm.weight": layer["ffn_norm_D"],
        "self_attn.q_proj.weight": layer["q_DNH"].reshape(D, -1).T,
        "self_attn.k_proj.weight": layer["k_DGH"].reshape(D, -1).T,
        "self_attn.v_proj.weight": layer["v_DGH"].reshape(D, -1).T,
        "self_attn.o_proj.weight": layer["o_NHD"].reshape(-1, D).T,
    }
    if shape.qk_norm:
        weights["self_attn.q_norm.weight"] = layer["q_norm_H"]
        weights["self_attn.k_norm.weight"] = layer["k_norm_H"]
    if shape.qkv_bias:
        weights["self_attn.q_proj.bias"] = layer["q_bias_NH"].reshape(-1)
        weights["self_attn.k_proj.bias"] = layer["k_bias_GH"].reshape(-1)
        weights["self_attn.v_proj.bias"] = layer["v_bias_GH"].reshape(-1)
    if "router_DE" not in layer:
        return weights | {
            "mlp.gate_proj.weight": layer["gate_DF"].T,
            "mlp.up_proj.weight": layer["up_DF"].T,
            "mlp.down_proj.weight": layer["down_FD"].T,
        }
    # transformers 5 keeps the experts of a layer in two arrays, gate above up.
    gate_up = np.concatenate([layer["gate_EDF"], layer["up_EDF"]], axis=2)
    return weights | {
        "mlp.gate.weight": layer["router_DE"].T,
        "mlp.experts.gate_up_proj": gate_up.swapaxes(1, 2),
        "mlp.experts.down_proj": layer["down_EFD"].swapaxes(1, 2),
    }

"""What a GGUF file's metadata say of the policy's architecture."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from ale_jax.model.layers import rotary_frequencies
from ale_jax.model.shape import PolicyShape
from ale_jax.model.weights.config import (
    ARCHITECTURES,
    MOST_EXPERTS,
    MOST_LAYERS,
    NO_EXPERTS,
    Fields,
    find_architecture,
    make_shape,
)

# By GGUF's name, which is transformers' without the underscore.
_KNOWN = {
    each.model_type.replace("_", ""): each
    for each in ARCHITECTURES
    if each.model_type != "qwen2_moe"  # in GGUF files it always has a shared expert
}

ARCHITECTURE = "general.architecture"
ROPE_FACTORS = "rope_freqs.weight"
# low_freq_factor, high_freq_factor, trained positions: the same in all releases of Llama 3.
_LLAMA3_BANDS = (1.0, 4.0, 8192.0)


def read_shape(
    path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, gguf.ReaderTensor]
) -> PolicyShape:
    """The shape of the file's policy. ValueError names what is missing or not supported."""
    name = metadata.get(ARCHITECTURE)
    architecture = find_architecture(Fields(path, metadata), name, _KNOWN)
    prefix = f"{name}."
    fields = Fields(
        path, {k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix)}
    )
    if "token_embd.weight" not in tensors:
        raise fields.error("tensor token_embd.weight is missing")
    width, heads = fields.count("embedding_length"), fields.count("attention.head_count")
    head_width = fields.count("attention.key_length", width // heads)
    fields.require("rope.scaling.type", "none")
    fields.require("attention.sliding_window", 0)
    fields.require("attention.value_length", head_width)
    fields.require("rope.dimension_count", head_width)
    if not architecture.has_experts:
        fields.require("expert_count", 0)
    sizes = {
        "vocab_size": int(tensors["token_embd.weight"].shape[-1]),
        "width": width,
        "num_layers": fields.count("block_count", most=MOST_LAYERS),
        "num_heads": heads,
        "num_kv_heads": fields.count("attention.head_count_kv", heads),
        "head_width": head_width,
        "mlp_width": fields.count("feed_forward_length"),
        **(_expert_sizes(fields) if architecture.has_experts else NO_EXPERTS),
        "qk_norm": architecture.qk_norm,
        "qkv_bias": architecture.qkv_bias,
        "rope_theta": fields.number("rope.freq_base", 10_000.0),
        "llama3_rope": (),
        "max_positions": fields.count("context_length", architecture.positions),
        "norm_eps": fields.number("attention.layer_norm_rms_epsilon"),
        "tie_embeddings": "output.weight" not in tensors,
    }
    shape = make_shape(fields, sizes)
    if ROPE_FACTORS in tensors:
        return _with_llama3_rope(fields, shape, tensors[ROPE_FACTORS].data)
    return shape


def _expert_sizes(fields: Fields) -> dict[str, object]:
    fields.require("expert_weights_norm", True)  # seldom written: Qwen3-MoE always does it
    return {
        "num_experts": fields.count("expert_count", most=MOST_EXPERTS),
        "experts_per_token": fields.count("expert_used_count"),
        "expert_width": fields.count("expert_feed_forward_length"),
        "dense_layers": (),
        "norm_topk_prob": True,
    }


def _with_llama3_rope(fields: Fields, shape: PolicyShape, slowed: np.ndarray) -> PolicyShape:
    """GGUF keeps Llama 3's scaling as what each frequency is divided by; the numbers behind it are
    found again, and refused if they do not give the same."""
    llama3 = dataclasses.replace(shape, llama3_rope=(float(slowed.max()), *_LLAMA3_BANDS))
    expected = rotary_frequencies(shape) / rotary_frequencies(llama3)
    if slowed.shape != expected.shape or not np.allclose(slowed, expected, rtol=1e-4):
        raise fields.error(f"tensor {ROPE_FACTORS}: other factors than Llama 3's")
    return llama3

"""Converts the config.json of a Hugging Face checkpoint to and from `PolicyShape`.

The file is external input, so each value's type is checked, and errors name the field.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ale_jax.config.model import PolicyShape
from ale_jax.files import read_json


@dataclasses.dataclass(frozen=True)
class Fields:
    """The fields of a file, by name. A field that is null counts as missing, as in transformers."""

    source: Path
    values: Mapping[str, Any]

    def error(self, text: str) -> ValueError:
        return ValueError(f"{self.source}: {text}")

    def get(self, name: str, default: Any = None) -> Any:
        value = self.values.get(name)
        return default if value is None else value

    def require(self, name: str, only: Any) -> None:
        """Raises ValueError if the field is present with a value other than the one that is
        supported."""
        if self.get(name, only) != only:
            raise self.error(f"{name} {self.get(name)!r:.80} is not supported, only {only!r} is")

    def count(self, name: str, default: int | None = None, most: int = 1 << 24) -> int:
        """Returns an integer from 1 to `most`, a limit that keeps a damaged file from exhausting
        the memory.

        ValueError if it is something else, or missing without a default.
        """
        value = self.get(name, default)
        if value is None:
            raise self.error(f"{name} is missing")
        if type(value) is not int or not 1 <= value <= most:
            raise self.error(f"{name} {value!r:.40} must be an integer from 1 to {most}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Returns a number > 0. ValueError if it is something else, or missing without a
        default."""
        value = self.get(name, default)
        if value is None:
            raise self.error(f"{name} is missing")
        if type(value) not in (int, float) or not value > 0:
            raise self.error(f"{name} {value!r:.40} must be a number above 0")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if type(value) is not bool:
            raise self.error(f"{name} {value!r:.40} must be true or false")
        return value

    def items(self, name: str) -> list[Any]:
        """Returns the items of a list; empty if it is missing."""
        value = self.get(name, [])
        if not isinstance(value, list):
            raise self.error(f"{name} {value!r:.40} must be a list")
        return value

    def part(self, name: str) -> Fields:
        """Returns the fields of a nested object; none if it is missing."""
        value = self.get(name, {})
        if not isinstance(value, Mapping):
            raise self.error(f"{name} {value!r:.40} must be an object")
        return Fields(self.source, value)


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What distinguishes a family of transformers' models from the other supported ones.

    qkv_bias: as in `PolicyShape`; None if the configuration states it. positions: transformers'
    default of max_position_embeddings, for a configuration that does not state it.
    """

    model_type: str
    class_name: str
    has_experts: bool
    qk_norm: bool
    qkv_bias: bool | None
    positions: int = 32_768


# A model that was upcycled from Qwen2 or Llama is a Qwen2-MoE (see layout.filler_shapes).
ARCHITECTURES = (
    Architecture("qwen3_moe", "Qwen3MoeForCausalLM", True, True, False),
    Architecture("qwen2_moe", "Qwen2MoeForCausalLM", True, False, None),
    Architecture("qwen3", "Qwen3ForCausalLM", False, True, False),
    Architecture("qwen2", "Qwen2ForCausalLM", False, False, True),
    Architecture("llama", "LlamaForCausalLM", False, False, False, 2048),
)

# Fields of which only one value is supported, which is also that of a missing field.
_ONLY = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "quantization_config": None,
    "shared_expert_intermediate_size": 0,
}
_LLAMA3_ROPE = (
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
)
# Far above those of any model.
MOST_LAYERS = MOST_EXPERTS = 1024

NO_EXPERTS: dict[str, Any] = {
    "num_experts": 0,
    "experts_per_token": 0,
    "expert_width": 0,
    "dense_layers": (),
    "norm_topk_prob": True,
}


def read_config(path: Path) -> PolicyShape:
    """Returns the shape that a config.json describes. ValueError names the field that is not
    supported."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path}: must contain an object")
    fields = Fields(path, content)
    known = {each.model_type: each for each in ARCHITECTURES}
    architecture = find_architecture(fields, fields.get("model_type"), known)
    for name, value in _ONLY.items():
        fields.require(name, value)
    for kind in fields.items("layer_types"):
        if kind != "full_attention":
            raise fields.error(f"layer_types {kind!r:.40} is not supported, only 'full_attention'")
    return make_shape(fields, _sizes(fields, architecture))


def find_architecture(
    fields: Fields, name: object, known: Mapping[str, Architecture]
) -> Architecture:
    """Returns the known architecture of a name. ValueError if there is none."""
    if not isinstance(name, str) or name not in known:
        raise fields.error(
            f"architecture {name!r:.40} is not supported, only {', '.join(known)} are"
        )
    return known[name]


def make_shape(fields: Fields, sizes: dict[str, Any]) -> PolicyShape:
    """Returns the shape. A ValueError for sizes that do not fit together also names the file."""
    try:
        return PolicyShape(**sizes)
    except ValueError as error:
        raise fields.error(str(error)) from error


def to_config(shape: PolicyShape) -> dict[str, Any]:
    """Returns the content of config.json, with the fields of published checkpoints, which both
    transformers 4 and 5 read. ValueError if transformers has no architecture of this shape."""
    architecture = _architecture_of(shape)
    fields: dict[str, Any] = {
        "architectures": [architecture.class_name],
        "model_type": architecture.model_type,
        "hidden_act": "silu",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_width,
        "intermediate_size": shape.mlp_width,
        "rope_theta": shape.rope_theta,
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": shape.norm_eps,
        "tie_word_embeddings": shape.tie_embeddings,
    }
    if shape.llama3_rope:
        numbers = dict(zip(_LLAMA3_ROPE, shape.llama3_rope, strict=True))
        numbers[_LLAMA3_ROPE[-1]] = int(numbers[_LLAMA3_ROPE[-1]])
        fields["rope_scaling"] = {"rope_type": "llama3", **numbers}
    if shape.is_moe and not shape.qk_norm:
        fields |= {"qkv_bias": shape.qkv_bias, "shared_expert_intermediate_size": 0}
    if shape.is_moe:
        fields |= {
            "num_experts": shape.num_experts,
            "num_experts_per_tok": shape.experts_per_token,
            "moe_intermediate_size": shape.expert_width,
            "norm_topk_prob": shape.norm_topk_prob,
            "decoder_sparse_step": 1,
            "mlp_only_layers": list(shape.dense_layers),
        }
    return fields


def _architecture_of(shape: PolicyShape) -> Architecture:
    for each in ARCHITECTURES:
        fits = each.has_experts == shape.is_moe and each.qk_norm == shape.qk_norm
        if fits and each.qkv_bias in (None, shape.qkv_bias):
            return each
    raise ValueError(
        f"transformers has no model with experts {shape.is_moe}, qk_norm {shape.qk_norm} and "
        f"qkv_bias {shape.qkv_bias}: such a policy cannot be exported"
    )


def _qkv_bias(fields: Fields, architecture: Architecture) -> bool:
    if architecture.qkv_bias is None:
        return fields.flag("qkv_bias", True)
    return architecture.qkv_bias


def _sizes(fields: Fields, architecture: Architecture) -> dict[str, Any]:
    width, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    rope_theta, llama3_rope = _rope(fields)
    return {
        "vocab_size": fields.count("vocab_size"),
        "width": width,
        "num_layers": fields.count("num_hidden_layers", most=MOST_LAYERS),
        "num_heads": heads,
        "num_kv_heads": fields.count("num_key_value_heads", heads),
        "head_width": fields.count("head_dim", width // heads),
        "mlp_width": fields.count("intermediate_size"),
        **(_expert_sizes(fields) if architecture.has_experts else NO_EXPERTS),
        "qk_norm": architecture.qk_norm,
        "qkv_bias": _qkv_bias(fields, architecture),
        "rope_theta": rope_theta,
        "llama3_rope": llama3_rope,
        "max_positions": fields.count("max_position_embeddings", architecture.positions),
        "norm_eps": fields.number("rms_norm_eps"),
        "tie_embeddings": fields.flag("tie_word_embeddings", False),
    }


def _expert_sizes(fields: Fields) -> dict[str, Any]:
    # transformers 5 writes num_local_experts where published checkpoints have num_experts.
    name = "num_experts" if fields.get("num_experts") else "num_local_experts"
    step = fields.count("decoder_sparse_step", 1)
    layers = range(fields.count("num_hidden_layers", most=MOST_LAYERS))
    listed = fields.items("mlp_only_layers")
    return {
        "num_experts": fields.count(name, most=MOST_EXPERTS),
        "experts_per_token": fields.count("num_experts_per_tok"),
        "expert_width": fields.count("moe_intermediate_size"),
        "dense_layers": tuple(i for i in layers if i in listed or (i + 1) % step),
        "norm_topk_prob": fields.flag("norm_topk_prob", False),
    }


def _rope(fields: Fields) -> tuple[float, tuple[float, ...]]:
    """theta and `PolicyShape.llama3_rope`, from the fields that transformers 5 or 4 writes."""
    scaling = fields.part("rope_parameters" if fields.get("rope_parameters") else "rope_scaling")
    theta = scaling.number("rope_theta", fields.number("rope_theta", 10_000.0))
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return theta, ()
    if kind != "llama3":
        raise fields.error(f"rope_type {kind!r} is not supported, only 'default' and 'llama3' are")
    return theta, tuple(scaling.number(name) for name in _LLAMA3_ROPE)

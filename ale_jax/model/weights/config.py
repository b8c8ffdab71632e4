"""Converts the config.json of a Hugging Face checkpoint to and from `PolicyShape`.

The file is external input, so each value's type is checked, and errors name the field. What it
leaves out is completed by transformers' own class of the family, whose defaults are its meaning.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from ale_jax.config.architecture import (
    Attention,
    Dense,
    Llama3Scaling,
    Mixer,
    PolicyShape,
    Rope,
)
from ale_jax.files import read_json
from ale_jax.model.families.decoder import num_layers
from ale_jax.model.families.family import Family
from ale_jax.model.families.fields import Fields
from ale_jax.model.families.registry import FAMILIES
from ale_jax.model.families.theirs import common_fields, theirs
from ale_jax.model.families.wrappers import WRAPPERS, is_wrapped, text_config
from ale_jax.model.weights.quantised_tensors import FIELD, read_quantisation

# What `to_config` writes itself. Other families' checkpoints hand on the file they were read from.
OWN = ("qwen3_moe", "qwen2_moe", "qwen3", "qwen2", "llama")


def read_config(path: Path) -> PolicyShape:
    """Returns the shape that a config.json describes. ValueError names the field that is not
    supported, or the folder without such a file."""
    if not path.is_file():
        raise ValueError(
            f"no checkpoint at {path.parent}: it has no {path.name}: give a Hugging Face folder, a "
            ".gguf file or a model's name, ORGANIZATION/NAME"
        )
    return _read(path, read_json(path))


def read_text(text: str, source: str) -> PolicyShape:
    """Returns the shape that the text of a config.json describes. source: its name in errors.
    Errors as `read_config`."""
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{source}: damaged: {error}") from error
    return _read(source, content)


def _read(source: Path | str, content: Any) -> PolicyShape:
    if not isinstance(content, dict):
        raise ValueError(f"{source}: must contain an object")
    read_quantisation(Fields(source, content))
    # How the folder stores its tensors is no part of the model, nor of what an export hands on.
    plain = {name: value for name, value in content.items() if name != FIELD}
    if is_wrapped(whole := Fields(source, plain)):
        plain = text_config(whole)
    given = Fields(source, plain)
    family = find_family(given)
    num_layers(given)  # before transformers makes lists of as many
    fields = Fields(source, theirs(given, family.model_type).to_dict(), common_fields())
    shape = family.read(fields)
    fields.refuse_rest()
    return dataclasses.replace(shape, source=json.dumps(plain))


def find_family(fields: Fields) -> Family:
    """Returns the family that the file names. ValueError if there is none here."""
    name = fields.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        known = ", ".join((*FAMILIES, *WRAPPERS))
        raise fields.error(f"model_type {name!r:.40} is not supported, only {known} are")
    return FAMILIES[name]


def to_config(shape: PolicyShape) -> dict[str, Any]:
    """Returns the content of config.json: that of the checkpoint that the shape was read from, or
    the fields of published checkpoints, which both transformers 4 and 5 read. ValueError if
    transformers has no architecture of this shape."""
    if shape.source:
        return json.loads(shape.source)
    if shape.family not in OWN:
        raise ValueError(
            f"transformers has no model with such layers as {shape.layers[0]}: a policy of them "
            "cannot be exported"
        )
    mixer = shape.layers[0].mixer
    assert isinstance(mixer, Attention), "the families in OWN have no other"
    fields = _of_all(shape) | _of_attention(mixer)
    if shape.is_moe:
        fields |= _of_experts(shape)
    if shape.family == "qwen2_moe":
        fields |= {"qkv_bias": mixer.bias, "shared_expert_intermediate_size": 0}
    return fields


def _of_all(shape: PolicyShape) -> dict[str, Any]:
    dense = [x.feed_forward.width for x in shape.layers if isinstance(x.feed_forward, Dense)]
    return {
        "architectures": [FAMILIES[shape.family].class_name],
        "model_type": shape.family,
        "hidden_act": "silu",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.num_layers,
        # Of a model whose layers all have experts, it is of no consequence.
        "intermediate_size": dense[0] if dense else shape.width,
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": shape.norm.eps,
        "tie_word_embeddings": shape.tie_embeddings,
    }


def _of_attention(kind: Mixer) -> dict[str, Any]:
    assert isinstance(kind, Attention) and isinstance(kind.rope, Rope)
    fields: dict[str, Any] = {
        "num_attention_heads": kind.num_heads,
        "num_key_value_heads": kind.num_kv_heads,
        "head_dim": kind.head_width,
        "rope_theta": kind.rope.theta,
    }
    if isinstance(scaling := kind.rope.scaling, Llama3Scaling):
        fields["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low,
            "high_freq_factor": scaling.high,
            "original_max_position_embeddings": int(scaling.trained),
        }
    return fields


def _of_experts(shape: PolicyShape) -> dict[str, Any]:
    (kind,) = {layer.experts for layer in shape.layers if layer.experts}
    fields: dict[str, Any] = {
        "num_experts": kind.num,
        "num_experts_per_tok": kind.per_token,
        "moe_intermediate_size": kind.width,
        "norm_topk_prob": kind.renormalise,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [i for i, layer in enumerate(shape.layers) if not layer.experts],
    }
    return fields

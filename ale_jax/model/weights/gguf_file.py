"""A GGUF file as a checkpoint: tensors under their Hugging Face names, dequantised when read."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from ale_jax.config.architecture import Attention, Llama3Scaling, PolicyShape, Rope
from ale_jax.config.model import ModelConfig
from ale_jax.model.families.decoder import MOST_EXPERTS, MOST_LAYERS
from ale_jax.model.families.fields import Fields
from ale_jax.model.rope import rotary_frequencies
from ale_jax.model.weights.gguf_reader import UNREADABLE, read_gguf
from ale_jax.model.weights.layout import Bounds, check_tensors, tensor_shapes


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What distinguishes a family from the other supported ones. positions: transformers' default,
    for a file that does not state them."""

    has_experts: bool
    qk_norm: bool
    qkv_bias: bool
    positions: int = 32_768


# By GGUF's name, which is transformers' name without the underscore. A qwen2moe always has a shared
# expert.
_KNOWN = {
    "qwen3moe": Architecture(True, True, False),
    "qwen3": Architecture(False, True, False),
    "qwen2": Architecture(False, False, True),
    "llama": Architecture(False, False, False, 2048),
}

ARCHITECTURE = "general.architecture"
ROPE_FACTORS = "rope_freqs.weight"
# low_freq_factor, high_freq_factor, trained positions: the same in all releases of Llama 3.
_LLAMA3_BANDS = (1.0, 4.0, 8192.0)


def read_shape(
    path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, gguf.ReaderTensor]
) -> PolicyShape:
    """Returns the shape of the file's policy. ValueError names what is missing or not supported."""
    name = metadata.get(ARCHITECTURE)
    if name not in _KNOWN:
        known = ", ".join(_KNOWN)
        raise ValueError(f"{path}: architecture {name!r:.40} is not supported, only {known} are")
    architecture = _KNOWN[name]
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
    sizes: dict[str, Any] = {
        "width": width,
        "num_layers": fields.count("block_count", most=MOST_LAYERS),
        "num_heads": heads,
        "num_kv_heads": fields.count("attention.head_count_kv", heads),
        "head_width": head_width,
        "mlp_width": fields.count("feed_forward_length"),
        **(_expert_sizes(fields) if architecture.has_experts else {}),
        "qk_norm": architecture.qk_norm,
        "qkv_bias": architecture.qkv_bias,
        "rope_theta": fields.number("rope.freq_base", 10_000.0),
        "max_positions": fields.count("context_length", architecture.positions),
        "norm_eps": fields.number("attention.layer_norm_rms_epsilon"),
        "tie_embeddings": "output.weight" not in tensors,
    }
    try:
        model = ModelConfig(**sizes)
    except ValueError as error:
        raise fields.error(str(error)) from error
    if ROPE_FACTORS in tensors:
        model = _with_llama3_rope(fields, model, tensors[ROPE_FACTORS].data)
    return model.policy_shape(int(tensors["token_embd.weight"].shape[-1]))


def _expert_sizes(fields: Fields) -> dict[str, object]:
    fields.require("expert_weights_norm", True)  # rarely written, because Qwen3-MoE always does it
    return {
        "num_experts": fields.count("expert_count", most=MOST_EXPERTS),
        "experts_per_token": fields.count("expert_used_count"),
        "expert_width": fields.count("expert_feed_forward_length"),
        "dense_layers": (),
        "norm_topk_prob": True,
    }


def _with_llama3_rope(fields: Fields, model: ModelConfig, slowed: np.ndarray) -> ModelConfig:
    """GGUF stores Llama 3's scaling as the divisor of each frequency. The parameters behind the
    divisors are recovered here. ValueError if they do not reproduce the divisors."""
    plain = Rope(model.rope_theta, model.head_width)
    scaling = Llama3Scaling(float(slowed.max()), *_LLAMA3_BANDS)
    scaled = dataclasses.replace(plain, scaling=scaling)
    expected = rotary_frequencies(plain) / rotary_frequencies(scaled)
    if slowed.shape != expected.shape or not np.allclose(slowed, expected, rtol=1e-4):
        raise fields.error(f"tensor {ROPE_FACTORS}: its factors are not Llama 3's")
    return dataclasses.replace(model, llama3_rope=dataclasses.astuple(scaling))


_EXPERT = re.compile(r"\.experts\.(\d+)\.")


@dataclasses.dataclass(frozen=True)
class GgufTensor:
    """A tensor, or, with `expert`, one of the tensors that the file stores stacked.

    turned_heads: the number of heads, if the tensor's rows are queries or keys in llama.cpp's
    order.
    """

    file: Path
    stored: gguf.ReaderTensor
    expert: int | None
    turned_heads: int | None

    @property
    def shape(self) -> tuple[int, ...]:
        """GGUF counts dimensions from the innermost."""
        return tuple(int(size) for size in reversed(self.stored.shape))[self.expert is not None :]

    def read(self, bounds: Bounds) -> np.ndarray:
        (start, stop), *inner = bounds
        if self.turned_heads is None:
            rows = self._dequantised(start, stop)
        else:
            rows = self._head_rows(start, stop)
        return rows[(slice(None), *(slice(*each) for each in inner))]

    def _dequantised(self, start: int, stop: int) -> np.ndarray:
        """Reads whole rows, because quantisation is by blocks within a row."""
        data = self.stored.data if self.expert is None else self.stored.data[self.expert]
        return gguf.dequantize(data[start:stop], self.stored.tensor_type)

    def _head_rows(self, start: int, stop: int) -> np.ndarray:
        """Reads whole heads and restores the order of their rows. llama.cpp stores the pairs of a
        head that rotate together side by side: 0, H/2, 1, H/2 + 1, ..."""
        assert self.turned_heads is not None
        width = self.shape[0] // self.turned_heads
        first, last = start // width, -(-stop // width)
        rows = self._dequantised(first * width, last * width)
        paired = rows.reshape(last - first, width // 2, 2, *rows.shape[1:])
        halves = paired.swapaxes(1, 2).reshape(rows.shape)
        return halves[start - first * width : stop - first * width]


@dataclasses.dataclass(frozen=True)
class GgufFile:
    """A checkpoint (see layout.Checkpoint) whose tensors are all known to be present."""

    shape: PolicyShape
    tensors: dict[str, GgufTensor]


def open_gguf(path: Path) -> GgufFile:
    """Reads the file's metadata. ValueError names the tensor or field that is wrong."""
    metadata, stored = _read(path)
    shape = read_shape(path, metadata, stored)
    stored.pop(ROPE_FACTORS, None)  # part of the shape
    tensors = _under_our_names(path, stored, metadata[ARCHITECTURE], shape)
    check_tensors(path, tensors, shape)
    return GgufFile(shape, tensors)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, gguf.ReaderTensor]]:
    """The fields that do not belong to the tokenizer, and the tensors, by name."""
    reader = read_gguf(path)
    found = reader.fields.items()
    try:
        metadata = {k: _value(field) for k, field in found if not k.startswith("tokenizer.")}
    except UNREADABLE as error:
        raise ValueError(f"{path}: cannot be read as GGUF: {error!s:.200}") from error
    return metadata, {tensor.name: tensor for tensor in reader.tensors}


def _value(field: gguf.ReaderField) -> Any:
    value = field.contents()
    # 1e-6 is stored as float32; as a Python float that would be 9.999999974752427e-07.
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _under_our_names(
    path: Path, stored: Mapping[str, gguf.ReaderTensor], architecture: str, shape: PolicyShape
) -> dict[str, GgufTensor]:
    """Every tensor of the file, by its Hugging Face name, or by its own if it has none."""
    names = gguf.get_tensor_name_map(
        next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture),
        shape.num_layers,
    )
    mixer = shape.layers[0].mixer
    assert isinstance(mixer, Attention)
    heads = {"q_proj": mixer.num_heads, "k_proj": mixer.num_kv_heads}
    tensors, used = {}, set()
    for name in tensor_shapes(shape):
        expert = _EXPERT.search(name)
        own = names.get_name(_EXPERT.sub(".experts.", name), (".weight", ".bias"))
        if own is None or own not in stored:
            continue  # check_tensors reports it
        used.add(own)
        if expert is not None:
            _check_experts(path, stored[own], shape)
        turned = heads.get(name.split(".")[-2]) if architecture == "llama" else None
        tensors[name] = GgufTensor(
            path, stored[own], None if expert is None else int(expert[1]), turned
        )
    rest = {own: GgufTensor(path, stored[own], None, None) for own in stored.keys() - used}
    return tensors | rest


def _check_experts(path: Path, stacked: gguf.ReaderTensor, shape: PolicyShape) -> None:
    count = int(stacked.shape[-1])
    if count != shape.num_experts:
        raise ValueError(
            f"{path}: tensor {stacked.name} has {count} experts, the model {shape.num_experts}"
        )

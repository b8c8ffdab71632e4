"""A GGUF file as a checkpoint: tensors under their Hugging Face names, dequantised as read."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import DTypeLike

from ale_jax.model.shape import PolicyShape
from ale_jax.model.weights.checkpoint import check_tensors
from ale_jax.model.weights.gguf_shape import ARCHITECTURE, ROPE_FACTORS, read_shape
from ale_jax.model.weights.layout import Bounds, tensor_shapes

# What the package raises for a file that it cannot read.
_UNREADABLE = (
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    OverflowError,
    RecursionError,
    NotImplementedError,
)
_EXPERT = re.compile(r"\.experts\.(\d+)\.")


@dataclasses.dataclass(frozen=True)
class GgufTensor:
    """A tensor, or with `expert` one of those that the file keeps stacked.

    turned_heads: rows of queries or keys are in llama.cpp's order; this many heads of them.
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
        """Quantisation is by blocks within a row: whole rows are read."""
        data = self.stored.data if self.expert is None else self.stored.data[self.expert]
        return gguf.dequantize(data[start:stop], self.stored.tensor_type)

    def _head_rows(self, start: int, stop: int) -> np.ndarray:
        """Of each head llama.cpp stores the pairs that rotate together side by side: 0, H/2, 1,
        H/2 + 1, ... Heads are read whole."""
        width = self.shape[0] // self.turned_heads
        first, last = start // width, -(-stop // width)
        rows = self._dequantised(first * width, last * width)
        paired = rows.reshape(last - first, width // 2, 2, *rows.shape[1:])
        halves = paired.swapaxes(1, 2).reshape(rows.shape)
        return halves[start - first * width : stop - first * width]


@dataclasses.dataclass(frozen=True)
class GgufFile:
    """A checkpoint (see checkpoint.Checkpoint) whose tensors are all known to be there."""

    shape: PolicyShape
    tensors: dict[str, GgufTensor]


def open_gguf(path: Path) -> GgufFile:
    """Reads what the file says of itself. ValueError names the tensor or field that is wrong."""
    metadata, stored = _read(path)
    shape = read_shape(path, metadata, stored)
    stored.pop(ROPE_FACTORS, None)  # part of the shape
    tensors = _under_our_names(path, stored, metadata[ARCHITECTURE], shape)
    check_tensors(path, tensors, shape)
    return GgufFile(shape, tensors)


class _Reader(gguf.GGUFReader):
    """Says which tensor is damaged, which the package's own errors do not; and does not go on
    behind the end of the file, where it would find as many empty values as it is told to."""

    def _get(self, offset: int, dtype: DTypeLike, count: int = 1, override_order=None):
        values = super()._get(offset, dtype, count, override_order)
        if len(values) != count:
            raise ValueError(f"should go on at byte {offset}, the file has {len(self.data)}")
        return values

    def _build_tensors(self, start_offs: int, fields: list[gguf.ReaderField]) -> None:
        tensors: dict[str, gguf.ReaderTensor] = {}
        for field in fields:
            try:
                super()._build_tensors(start_offs, [field])
                _dequantise_one_row(self.tensors[0])
            except _UNREADABLE as error:
                raise ValueError(f"tensor {field.name}: {error}") from error
            if field.name in tensors:
                raise ValueError(f"tensor {field.name}: is there twice")
            tensors[field.name] = self.tensors[0]
        self.tensors = list(tensors.values())


def _dequantise_one_row(tensor: gguf.ReaderTensor) -> None:
    """Raises NotImplementedError for a quantisation that the package does not know."""
    gguf.dequantize(tensor.data.reshape(-1, tensor.data.shape[-1])[:1], tensor.tensor_type)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, gguf.ReaderTensor]]:
    """The fields that do not belong to the tokenizer, and the tensors, by name."""
    try:
        reader = _Reader(path)
        metadata = {
            key: _value(field)
            for key, field in reader.fields.items()
            if not key.startswith("tokenizer.")
        }
    except _UNREADABLE as error:
        raise ValueError(f"{path}: cannot be read as GGUF: {error!s:.200}") from error
    return metadata, {tensor.name: tensor for tensor in reader.tensors}


def _value(field: gguf.ReaderField) -> Any:
    value = field.contents()
    # 1e-6 is stored as float32; as a Python float that would be 9.999999974752427e-07.
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _under_our_names(
    path: Path, stored: Mapping[str, gguf.ReaderTensor], architecture: str, shape: PolicyShape
) -> dict[str, GgufTensor]:
    """Every tensor of the file, by its Hugging Face name; what has none keeps its own."""
    names = gguf.get_tensor_name_map(
        next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture),
        shape.num_layers,
    )
    heads = {"q_proj": shape.num_heads, "k_proj": shape.num_kv_heads}
    tensors, used = {}, set()
    for name in tensor_shapes(shape):
        expert = _EXPERT.search(name)
        own = names.get_name(_EXPERT.sub(".experts.", name), (".weight", ".bias"))
        if own not in stored:
            continue  # check_tensors says so
        used.add(own)
        turned = heads.get(name.split(".")[-2]) if architecture == "llama" else None
        tensors[name] = GgufTensor(
            path, stored[own], None if expert is None else int(expert[1]), turned
        )
    rest = {own: GgufTensor(path, stored[own], None, None) for own in stored.keys() - used}
    return tensors | rest

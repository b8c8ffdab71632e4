"""Safetensors files: a JSON header that says where each tensor is, then the tensors; and a Hugging
Face folder of such files, with its config.json.

The header is parsed here and not by the safetensors package, for three reasons. Errors in a wrong
header must name the tensor, numpy must get bfloat16 (which that package leaves to torch), and a
file is written tensor by tensor.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np

from ale_jax.config.architecture import PolicyShape
from ale_jax.files import parse_json, read_json
from ale_jax.model.families.fields import Fields
from ale_jax.model.families.wrappers import is_wrapped, text_tensors
from ale_jax.model.weights.config import read_config
from ale_jax.model.weights.layout import Bounds, Tensor, check_tensors, tensor_shapes
from ale_jax.model.weights.quantised_tensors import read_quantisation
from ale_jax.model.weights.stacked_experts import apart

DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
MAX_HEADER_BYTES = 100_000_000  # the format's own limit


class Kind(NamedTuple):
    """Type and shape of a tensor."""

    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class TensorEntry(NamedTuple):
    """Where a tensor is stored: `offset` counts bytes from the beginning of the file."""

    file: Path
    kind: Kind
    offset: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.kind.shape

    def read(self, bounds: Bounds) -> np.ndarray:
        """Returns a part of the tensor. The file is memory-mapped, so only the pages that are used
        are read."""
        mapped = np.memmap(self.file, self.kind.dtype, "r", self.offset, self.shape)
        return mapped[tuple(slice(*each) for each in bounds)]


def read_header(path: Path, types: Mapping[str, np.dtype] = DTYPES) -> dict[str, TensorEntry]:
    """Returns the tensors of a file, by name, without reading their data. types: that they may
    have.

    ValueError, with the names of file and tensor, unless the header describes the file exactly.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\xff"))
        if length > min(size - 8, MAX_HEADER_BYTES):
            raise ValueError(f"{path}: truncated, or not a safetensors file ({size} bytes)")
        try:
            header = parse_json(file.read(length))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: its header is damaged ({error!s:.200})") from error
    if not isinstance(header, dict):
        raise ValueError(f"{path}: its header is not an object")
    header.pop("__metadata__", None)
    tensors = {
        name: _tensor(path, name, entry, 8 + length, types) for name, entry in header.items()
    }
    _check_places(path, tensors, 8 + length, size)
    return tensors


def write_tensors(
    file: BinaryIO, kinds: Mapping[str, Kind], tensors: Iterable[tuple[str, np.ndarray]]
) -> None:
    """Writes the header, then the tensors one by one as they come, in the order of `kinds`."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}  # transformers requires it
    end = 0
    for name, kind in kinds.items():
        begin, end = end, end + kind.num_bytes
        stored = _NAMES[kind.dtype]
        header[name] = {"dtype": stored, "shape": kind.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text = text.ljust(-(-len(text) // 8) * 8)  # tensors begin at a multiple of 8
    file.write(struct.pack("<Q", len(text)) + text)
    for (expected, kind), (name, tensor) in zip(kinds.items(), tensors, strict=True):
        assert (name, tensor.dtype, tensor.shape) == (expected, *kind), (name, expected, kind)
        file.write(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)


def _tensor(
    path: Path, name: str, entry: Any, data_start: int, types: Mapping[str, np.dtype]
) -> TensorEntry:
    try:
        stored, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        sound = isinstance(stored, str) and all(
            type(each) is int and each >= 0 for each in (*shape, begin, end)
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: tensor {name}: its entry is damaged: {entry!r:.100}") from error
    if not sound:
        raise ValueError(f"{path}: tensor {name}: its entry is damaged: {entry!r:.100}")
    if stored not in types:
        known = ", ".join(types)
        raise ValueError(f"{path}: tensor {name}: type {stored!r:.40} is not one of {known}")
    kind = Kind(types[stored], shape)
    if end - begin != kind.num_bytes:
        raise ValueError(
            f"{path}: tensor {name}: {stored} of shape {shape} is {kind.num_bytes} bytes, "
            f"its header says {end - begin}"
        )
    return TensorEntry(path, kind, data_start + begin)


def _check_places(path: Path, tensors: Mapping[str, TensorEntry], end: int, size: int) -> None:
    """ValueError unless the tensors follow each other without gaps, from the header to the file's
    end."""
    in_order = sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].kind.num_bytes))
    for name, tensor in in_order:
        if tensor.offset != end:
            raise ValueError(f"{path}: tensor {name}: begins at byte {tensor.offset}, not at {end}")
        end += tensor.kind.num_bytes
        if end > size:
            raise ValueError(
                f"{path}: tensor {name}: ends at byte {end}, the file has {size}: truncated"
            )
    if end != size:
        raise ValueError(f"{path}: {size - end} bytes at its end belong to no tensor")


CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
BLOCK_BYTES = 1 << 24  # that are compared at once


@dataclasses.dataclass(frozen=True)
class Folder:
    """A checkpoint (see layout.Checkpoint) whose headers have all been read and checked."""

    shape: PolicyShape
    tensors: Mapping[str, Tensor]


def open_folder(path: Path) -> Folder:
    """Reads configuration and headers, and the head if it must be the embedding. ValueError names
    the file, and the tensor, that is wrong."""
    if not (path / CONFIG).is_file():
        raise ValueError(f"no {CONFIG} in {path}: give a folder that transformers can load")
    shape = read_config(path / CONFIG)
    fields = Fields(path / CONFIG, read_json(path / CONFIG))
    quantisation = read_quantisation(fields)
    types = DTYPES | quantisation.types if quantisation else DTYPES
    if (path / INDEX).is_file():
        tensors = _read_shards(path, types)
    elif (path / SINGLE).is_file():
        tensors = read_header(path / SINGLE, types)
    else:
        raise ValueError(
            f"neither {INDEX} nor {SINGLE} in {path}: save the checkpoint as safetensors"
        )
    read = {tensor.file for tensor in tensors.values()}
    for file in sorted(path.glob("*.safetensors")):
        if file not in read:
            raise ValueError(f"{file} is not part of this model: move it out of the folder")
    if is_wrapped(fields):
        tensors = text_tensors(tensors)
    # Some checkpoints store the embedding twice; transformers reads one.
    head = tensors.pop(HEAD, None) if shape.tie_embeddings else None
    whole = quantisation.dequantised(tensors) if quantisation else tensors
    whole = apart(whole, tensor_shapes(shape))
    check_tensors(path, whole, shape)
    _check_plain(whole)
    if head and not _is_equal(head, tensors[EMBEDDING]):
        raise ValueError(
            f"{head.file}: tensor {HEAD} is another than {EMBEDDING}, and {path / CONFIG} says "
            "that they are one: set tie_word_embeddings to false there"
        )
    return Folder(shape, whole)


def _check_plain(tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if isinstance(tensor, TensorEntry) and tensor.kind.dtype not in _NAMES:
            raise ValueError(
                f"{tensor.file}: tensor {name}: {tensor.kind.dtype} has no scales beside it"
            )


def _is_equal(one: TensorEntry, other: TensorEntry) -> bool:
    """Whether two tensors hold the same bytes, a few of which are in memory at once."""
    if one.kind != other.kind:
        return False
    a, b = (np.memmap(x.file, np.uint8, "r", x.offset, x.kind.num_bytes) for x in (one, other))
    parts = (slice(n, n + BLOCK_BYTES) for n in range(0, len(a), BLOCK_BYTES))
    return all(np.array_equal(a[part], b[part]) for part in parts)


def _read_shards(path: Path, types: Mapping[str, np.dtype]) -> dict[str, TensorEntry]:
    """The tensors of all shards. Each must be in the shard that the index names, and only there."""
    index = read_json(path / INDEX)
    where = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(where, dict) or not all(isinstance(file, str) for file in where.values()):
        raise ValueError(f"{path / INDEX}: weight_map must give the file of each tensor")
    tensors: dict[str, TensorEntry] = {}
    for file in sorted(set(where.values())):
        if Path(file).name != file:
            raise ValueError(f"{path / INDEX}: {file!r:.100} is not a file of the folder itself")
        if not (path / file).is_file():
            name = next(name for name in where if where[name] == file)
            raise ValueError(f"{path / file} is missing: it should hold tensor {name}, and others")
        for name, tensor in read_header(path / file, types).items():
            if where.get(name) != file:
                raise ValueError(
                    f"{path / file}: tensor {name} is not listed for this file in {INDEX}"
                )
            tensors[name] = tensor
    for name, file in where.items():
        if name not in tensors:
            raise ValueError(f"{path / file}: tensor {name} is missing, although {INDEX} lists it")
    return tensors

"""Reads the fields and the tensors of a GGUF file, which is not trusted, by the gguf package."""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
from numpy.typing import DTypeLike

# What the gguf package raises for a file that it cannot read.
UNREADABLE = (
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    OverflowError,
    RecursionError,
    NotImplementedError,
)


class GgufReader(gguf.GGUFReader):
    """Names the tensor that is damaged, which the package's own errors do not. Also stops at the
    end of the file, beyond which the package would read any number of empty values."""

    def _get(self, offset: int, dtype: DTypeLike, count: int = 1, override_order=None):
        values = super()._get(offset, dtype, count, override_order)
        if len(values) != count:
            raise ValueError(
                f"expected more data at byte {offset}, but the file has {len(self.data)} bytes"
            )
        return values

    def _build_tensors(self, start_offs: int, fields: list[gguf.ReaderField]) -> None:
        tensors: dict[str, gguf.ReaderTensor] = {}
        for field in fields:
            try:
                super()._build_tensors(start_offs, [field])
                _dequantise_one_row(self.tensors[0])
            except UNREADABLE as error:
                raise ValueError(f"tensor {field.name}: {error}") from error
            if field.name in tensors:
                raise ValueError(f"tensor {field.name}: occurs twice")
            tensors[field.name] = self.tensors[0]
        self.tensors = list(tensors.values())


def _dequantise_one_row(tensor: gguf.ReaderTensor) -> None:
    """Raises NotImplementedError for a quantisation that the package does not know."""
    gguf.dequantize(tensor.data.reshape(-1, tensor.data.shape[-1])[:1], tensor.tensor_type)


def read_gguf(path: Path) -> GgufReader:
    """Reads where everything is in a file. ValueError if it is damaged, or of another byte order
    than this machine."""
    try:
        reader = GgufReader(path)
    except UNREADABLE as error:
        raise ValueError(f"{path}: cannot be read as GGUF: {error!s:.200}") from error
    if reader.byte_order == "S":  # gguf.dequantize would not swap the bytes
        theirs, ours = reader.endianess.name.lower(), sys.byteorder
        raise ValueError(
            f"{path}: the file is {theirs}-endian, this machine {ours}-endian: take a "
            f"{ours}-endian file, or convert a copy with `gguf-convert-endian COPY {ours}`"
        )
    return reader

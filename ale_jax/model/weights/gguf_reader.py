"""Reads the fields and the tensors of a GGUF file, which is not trusted, by the gguf package."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType
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
# Far above those of any model, and few enough to be read within seconds.
MOST_FIELDS = MOST_TENSORS = 1 << 16
MOST_ITEMS = 1 << 22  # of all arrays
MOST_DIMENSIONS = 4  # as ggml has it


class GgufReader(gguf.GGUFReader):
    """Names the tensor that is damaged, which the package's own errors do not. Stops at the end of
    the file, beyond which the package would read any number of empty values, and at counts that no
    model has. Reads arrays of numbers as a whole, which the package does number by number."""

    def _get(self, offset: int, dtype: DTypeLike, count: int = 1, override_order=None):
        order = override_order or self.byte_order
        kind, count = np.dtype(dtype).newbyteorder(order), int(count)
        if offset + count * kind.itemsize > len(self.data):
            raise ValueError(
                f"expected more data at byte {offset}, but the file has {len(self.data)} bytes"
            )
        return np.frombuffer(self.data, kind, count, offset)

    def _get_field_parts(self, orig_offs: int, raw_type: int):
        if raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        kind, size = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)
        self._items = getattr(self, "_items", 0) + int(size[0])
        _check_count("items of arrays", self._items, MOST_ITEMS)
        inner = GGUFValueType(int(kind[0]))
        if inner == GGUFValueType.STRING:
            return self._strings(orig_offs, [kind, size])
        if inner not in self.gguf_scalar_to_np:
            raise ValueError(f"an array of {inner.name} is not supported")
        values = self._get(orig_offs + 12, self.gguf_scalar_to_np[inner], int(size[0]))
        return 12 + values.nbytes, [kind, size, values], [2], [GGUFValueType.ARRAY, inner]

    def _strings(self, orig_offs: int, parts: list[np.ndarray]):
        offs = orig_offs + 12
        for _ in range(int(parts[1][0])):
            text = self._get_str(offs)
            parts += text
            offs += 8 + len(text[1])
        texts = list(range(3, len(parts), 2))
        return offs - orig_offs, parts, texts, [GGUFValueType.ARRAY, GGUFValueType.STRING]

    def _build_fields(self, offs: int, count: int) -> int:
        _check_count("fields", count, MOST_FIELDS)
        return super()._build_fields(offs, count)

    def _build_tensor_info(self, offs: int, count: int):
        _check_count("tensors", count, MOST_TENSORS)
        return super()._build_tensor_info(offs, count)

    def _get_tensor_info_field(self, orig_offs: int):
        behind_name = orig_offs + 8 + int(self._get(orig_offs, np.uint64)[0])
        dimensions = self._get(behind_name, np.uint32)[0]
        _check_count("dimensions of a tensor", dimensions, MOST_DIMENSIONS)
        return super()._get_tensor_info_field(orig_offs)

    def _build_tensors(self, start_offs: int, fields: list[gguf.ReaderField]) -> None:
        tensors: dict[str, gguf.ReaderTensor] = {}
        for field in fields:
            try:
                super()._build_tensors(start_offs, [field])
                _check_quantisation(self.tensors[0].tensor_type)
            except UNREADABLE as error:
                raise ValueError(f"tensor {field.name}: {error}") from error
            if field.name in tensors:
                raise ValueError(f"tensor {field.name}: occurs twice")
            tensors[field.name] = self.tensors[0]
        self.tensors = list(tensors.values())


def _check_count(what: str, count: int, most: int) -> None:
    if count > most:
        raise ValueError(f"{count} {what} are more than any model has, {most}")


def _is_read(kind: GGMLQuantizationType) -> bool:
    """Tries a block of zeros, since the package has no list of what it can dequantise."""
    try:
        gguf.dequantize(np.zeros(gguf.GGML_QUANT_SIZES[kind][1], np.uint8), kind)
    except NotImplementedError:
        return False
    return True


@functools.cache
def quantisations() -> tuple[GGMLQuantizationType, ...]:
    """Returns the types of tensors that can be read."""
    return tuple(kind for kind in gguf.GGML_QUANT_SIZES if _is_read(kind))


def _check_quantisation(kind: GGMLQuantizationType) -> None:
    if kind not in quantisations():
        names = ", ".join(each.name for each in quantisations())
        raise ValueError(f"its type {kind.name} is not read, only {names}: take another file")


def read_gguf(path: Path) -> GgufReader:
    """Reads where everything is in a file. ValueError if it is damaged, or of another byte order
    than this machine."""
    try:
        reader = GgufReader(path)
    except UNREADABLE as error:
        raise ValueError(f"{path}: cannot be read as GGUF: {error!s:.300}") from error
    if reader.byte_order == "S":  # gguf.dequantize would not swap the bytes
        theirs, ours = reader.endianess.name.lower(), sys.byteorder
        raise ValueError(
            f"{path}: the file is {theirs}-endian, this machine {ours}-endian: take a "
            f"{ours}-endian file, or convert a copy with `gguf-convert-endian COPY {ours}`"
        )
    return reader

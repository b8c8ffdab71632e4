"""Tensors that a folder stores in four or eight bits, as its config.json says, dequantised where
they are read.

MXFP4, as gpt-oss has its experts: blocks of 32 numbers of four bits (e2m1), each with a power of
two (Open Compute Project, microscaling formats 1.0). FP8, as DeepSeek V3 and Qwen3-FP8 have their
linear maps: numbers of eight bits (e4m3), and a float32 scale for each tile of 128 x 128, or, as
Devstral 2 has them, for each map.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import ml_dtypes
import numpy as np

from ale_jax.model.families.fields import Fields
from ale_jax.model.weights.layout import Bounds, Tensor

FIELD = "quantization_config"
Tensors = Mapping[str, Tensor]

_GROUP = 32  # numbers that share a power of two
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_OF_NIBBLE = np.concatenate([_E2M1, -_E2M1])
_OF_BYTE = np.stack([np.tile(_OF_NIBBLE, 16), np.repeat(_OF_NIBBLE, 16)], axis=-1)  # low, high


@dataclasses.dataclass(frozen=True)
class Mxfp4:
    """A stack of maps [E,in,out] whose numbers are stored as [E,out,in]. blocks: two numbers in
    each byte, [E,out,in/32,16]. scales: exponents plus 127, [E,out,in/32]."""

    blocks: Tensor
    scales: Tensor

    @property
    def file(self) -> Path:
        return self.blocks.file

    @property
    def shape(self) -> tuple[int, ...]:
        E, outputs, groups, _ = self.blocks.shape
        return E, groups * _GROUP, outputs

    def read(self, bounds: Bounds) -> np.ndarray:
        experts, (start, stop), outputs = bounds
        groups = start // _GROUP, -(-stop // _GROUP)
        packed = self.blocks.read((experts, outputs, groups, (0, _GROUP // 2)))
        pairs = _OF_BYTE[packed.astype(np.uint8)]
        exponent = self.scales.read((experts, outputs, groups)).astype(np.int32) - 127
        number = np.ldexp(pairs.reshape(*exponent.shape, _GROUP), exponent[..., None])
        first = groups[0] * _GROUP
        rows = number.reshape(*exponent.shape[:2], -1)[..., start - first : stop - first]
        return rows.swapaxes(1, 2)


@dataclasses.dataclass(frozen=True)
class _Fp8:
    """values: in the order and shape of the map."""

    values: Tensor

    @property
    def file(self) -> Path:
        return self.values.file

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape


@dataclasses.dataclass(frozen=True)
class TiledFp8(_Fp8):
    """A map [out,in] with a scale for each tile. scales: [out/size, in/size], rounded up; a tile at
    the end may be smaller."""

    scales: Tensor
    tile: tuple[int, int]

    def read(self, bounds: Bounds) -> np.ndarray:
        of_scales = [(a // size, -(-b // size)) for (a, b), size in zip(bounds, self.tile)]
        scale = self.scales.read(tuple(of_scales)).astype(np.float32)
        rows, columns = (
            np.arange(*cut) // size - cut[0] // size for cut, size in zip(bounds, self.tile)
        )
        return self.values.read(bounds).astype(np.float32) * scale[rows][:, columns]


@dataclasses.dataclass(frozen=True)
class ScaledFp8(_Fp8):
    """A map with one scale for all of it."""

    scale: Tensor

    def read(self, bounds: Bounds) -> np.ndarray:
        return self.values.read(bounds).astype(np.float32) * self.scale.read(()).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Quantisation:
    """How a folder's tensors are stored. tile: of FP8; None: a map has one scale."""

    method: Literal["mxfp4", "fp8"]
    tile: tuple[int, int] | None = None

    @property
    def types(self) -> dict[str, np.dtype]:
        """The types of tensors that are not numbers by themselves, by safetensors' names."""
        if self.method == "mxfp4":
            return {"U8": np.dtype(np.uint8)}
        return {"F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn)}

    def dequantised(self, tensors: Tensors) -> Tensors:
        """Returns the tensors by the names of what is stored in them. ValueError, with file and
        name, for parts that do not fit together."""
        found = dict(tensors)
        for name in tensors:
            if self.method == "mxfp4" and name.endswith("_blocks"):
                whole = name.removesuffix("_blocks")
                found[whole] = _mxfp4(whole, found.pop(name), found.pop(f"{whole}_scales", None))
            if self.method == "fp8" and name.endswith("_scale_inv"):
                whole = name.removesuffix("_scale_inv")
                found[whole] = _fp8(whole, found.get(whole), found.pop(name), self.tile)
            if self.method == "fp8" and name.endswith(".activation_scale"):
                found.pop(name)  # activations are not quantised here
        return found


def _mxfp4(name: str, blocks: Tensor, scales: Tensor | None) -> Mxfp4:
    shape = blocks.shape
    if scales is None or len(shape) != 4 or shape[3] != _GROUP // 2 or scales.shape != shape[:3]:
        given = None if scales is None else scales.shape
        raise ValueError(
            f"{blocks.file}: tensor {name}: blocks of shape {shape} with scales of shape {given} "
            "are not MXFP4, which has [E,out,in/32,16] and [E,out,in/32]"
        )
    return Mxfp4(blocks, scales)


def _fp8(
    name: str, values: Tensor | None, scales: Tensor, tile: tuple[int, int] | None
) -> TiledFp8 | ScaledFp8:
    given = () if values is None else values.shape
    tiles = tuple(-(-size // each) for size, each in zip(given, tile)) if tile else ()
    if values is None or len(given) != 2 or scales.shape != tiles:
        raise ValueError(
            f"{scales.file}: tensor {name}: scales of shape {scales.shape} are not one for each "
            f"tile of {tile or 'any size'} of {given}"
        )
    return TiledFp8(values, scales, tile) if tile else ScaledFp8(values, scales)


def read_quantisation(fields: Fields) -> Quantisation | None:
    """Returns what a config.json says of its folder's tensors; None: they are plain. ValueError
    names the field that is not supported."""
    if fields.get(FIELD) is None:
        return None
    given = fields.part(FIELD)
    method = given.get("quant_method")
    for name in ("modules_to_not_convert", "ignored_layers", "dequantize"):
        given.get(name)  # the tensors themselves say which of them are quantised
    if method == "mxfp4":
        given.refuse_rest()
        return Quantisation("mxfp4")
    if method != "fp8":
        raise fields.error(f"{FIELD}.quant_method {method!r:.40} is not one of mxfp4, fp8")
    given.require("expert_dtype", "fp8")
    for name in ("activation_scheme", "scale_fmt"):
        given.get(name)  # of activations, and how scales were rounded
    if given.get("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        given.require("fmt", "e4m3")
    return Quantisation("fp8", _tile(given))


def _tile(given: Fields) -> tuple[int, int] | None:
    """The tile that the file names, or that it leaves out; null: there is none."""
    tile = given.get(
        "weight_block_size", None if "weight_block_size" in given.values else [128] * 2
    )
    given.refuse_rest()
    if tile is None:
        return None
    if not isinstance(tile, list) or len(tile) != 2 or not all(_is_size(size) for size in tile):
        raise given.error(f"weight_block_size {tile!r:.40} must be two integers above 0")
    return tile[0], tile[1]


def _is_size(size: object) -> bool:
    return type(size) is int and size > 0

"""Exports weights for other libraries: a folder that transformers loads and that computes the
same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from ale_jax.config.architecture import PolicyShape
from ale_jax.files import new_folder, write_json
from ale_jax.model.params import Params
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.model.weights.config import to_config
from ale_jax.model.weights.layout import Stored, filler_shapes, is_stored, layout
from ale_jax.model.weights.safetensors_file import (
    CONFIG,
    DTYPES,
    INDEX,
    SINGLE,
    Kind,
    write_tensors,
)

GENERATION_CONFIG = "generation_config.json"
MAX_SHARD_BYTES = 5_000_000_000  # as in transformers


def export(
    path: Path,
    params: Params,
    shape: PolicyShape,
    tokenizer: ChatTokenizer | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Writes the weights in their own type, with configuration and tokenizer, to a new folder.

    The folder appears complete or not at all. Weights on several devices are gathered one at a
    time. With several hosts, all of them have to call this, and the first one writes. ValueError if
    the folder exists, the weights are of a type that safetensors cannot hold, or transformers has
    no such architecture.
    """
    if path.exists():
        raise ValueError(f"{path} exists: name a folder that does not")
    config = to_config(shape)
    kinds = _kinds(params, shape)
    if jax.process_index() > 0:
        for _ in _tensors(params, shape, kinds):  # only takes part in the gathering
            pass
        return
    with new_folder(path) as folder:
        _write_shards(folder, _cut(kinds, max_shard_bytes), _tensors(params, shape, kinds))
        write_json(folder / CONFIG, _with_dtype(config, params["embed_VD"].dtype))
        if tokenizer is not None:
            tokenizer.save(folder)
            stops = {"eos_token_id": list(tokenizer.stop_ids)}
            write_json(folder / GENERATION_CONFIG, stops)


def _with_dtype(config: dict[str, Any], dtype: np.dtype) -> dict[str, Any]:
    """The configuration, which says of what type the tensors are if it said so before."""
    return config | {name: str(dtype) for name in ("dtype", "torch_dtype") if name in config}


def _kinds(params: Params, shape: PolicyShape) -> dict[str, Kind]:
    """Every tensor to be written, in the order of writing."""
    kinds: dict[str, Kind] = {}
    for (stored, weight), *_ in _tensor_groups(params, shape):
        if weight.dtype not in DTYPES.values():
            raise ValueError(f"weights are {weight.dtype}, not one of {', '.join(DTYPES)}")
        kinds |= dict.fromkeys(stored.names, Kind(weight.dtype, stored.tensor_shape))
    dtype = params["embed_VD"].dtype
    return kinds | {name: Kind(dtype, size) for name, size in filler_shapes(shape).items()}


def _tensors(
    params: Params, shape: PolicyShape, kinds: dict[str, Kind]
) -> Iterator[tuple[str, np.ndarray]]:
    for parts in _tensor_groups(params, shape):
        written = [stored.write(_gather(weight)) for stored, weight in parts]
        for same in zip(*written, strict=True):
            yield same[0][0], parts[0][0].join([tensor for _, tensor in same])
    for name in filler_shapes(shape):
        yield name, np.zeros(kinds[name].shape, kinds[name].dtype)


def _tensor_groups(params: Params, shape: PolicyShape) -> list[list[tuple[Stored, jax.Array]]]:
    """The weights, by the tensors that they are stored in; those of one tensor in its order."""
    groups: dict[tuple[str, ...], list[tuple[Stored, jax.Array]]] = {}
    stored = jax.tree.leaves(layout(shape), is_leaf=is_stored)
    for each in zip(stored, jax.tree.leaves(params), strict=True):
        groups.setdefault(each[0].names, []).append(each)
    return [sorted(group, key=lambda part: part[0].start) for group in groups.values()]


def _gather(weight: jax.Array) -> np.ndarray:
    """The weight in this host's memory. JAX keeps that copy as long as the array that it was
    requested from, so it is requested from a temporary array of the same shards."""
    if not weight.is_fully_addressable:
        return multihost_utils.process_allgather(weight, tiled=True)
    parts = [shard.data for shard in weight.addressable_shards]
    return np.asarray(
        jax.make_array_from_single_device_arrays(weight.shape, weight.sharding, parts)
    )


def _cut(kinds: dict[str, Kind], max_bytes: int) -> list[dict[str, Kind]]:
    """Shards of at most `max_bytes`, or of a single larger tensor."""
    shards: list[dict[str, Kind]] = [{}]
    room = max_bytes
    for name, kind in kinds.items():
        if kind.num_bytes > room and shards[-1]:
            shards.append({})
            room = max_bytes
        shards[-1][name] = kind
        room -= kind.num_bytes
    return shards


def _write_shards(
    folder: Path, shards: list[dict[str, Kind]], tensors: Iterator[tuple[str, np.ndarray]]
) -> None:
    where: dict[str, str] = {}
    for number, kinds in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors" if len(shards) > 1 else SINGLE
        with (folder / file).open("xb") as out:
            write_tensors(out, kinds, islice(tensors, len(kinds)))
            os.fsync(out.fileno())
        where |= dict.fromkeys(kinds, file)
    if len(shards) > 1:
        total = sum(kind.num_bytes for kinds in shards for kind in kinds.values())
        write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": where})

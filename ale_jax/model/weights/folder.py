"""A Hugging Face checkpoint: a folder with config.json and safetensors files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ale_jax.files import read_json
from ale_jax.model.shape import PolicyShape
from ale_jax.model.weights.checkpoint import check_tensors
from ale_jax.model.weights.config import read_config
from ale_jax.model.weights.safetensors_file import Tensor, read_header

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


@dataclasses.dataclass(frozen=True)
class Folder:
    """A checkpoint (see checkpoint.Checkpoint) whose headers have all been read and checked."""

    shape: PolicyShape
    tensors: dict[str, Tensor]


def open_folder(path: Path) -> Folder:
    """Reads configuration and headers. ValueError names the file, and the tensor, that is wrong."""
    if not (path / CONFIG).is_file():
        raise ValueError(f"no {CONFIG} in {path}: give a folder that transformers can load")
    shape = read_config(path / CONFIG)
    if (path / INDEX).is_file():
        tensors = _read_shards(path)
    elif (path / SINGLE).is_file():
        tensors = read_header(path / SINGLE)
    else:
        raise ValueError(
            f"neither {INDEX} nor {SINGLE} in {path}: save the checkpoint as safetensors"
        )
    if shape.tie_embeddings:  # some checkpoints store the embedding twice; transformers reads one
        tensors.pop("lm_head.weight", None)
    check_tensors(path, tensors, shape)
    return Folder(shape, tensors)


def _read_shards(path: Path) -> dict[str, Tensor]:
    """The tensors of all shards; each must be in the one that the index says, and in no other."""
    index = read_json(path / INDEX)
    where = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(where, dict) or not all(isinstance(file, str) for file in where.values()):
        raise ValueError(f"{path / INDEX}: weight_map must give the file of each tensor")
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(where.values())):
        if Path(file).name != file:
            raise ValueError(f"{path / INDEX}: {file!r:.100} is no file of the folder itself")
        if not (path / file).is_file():
            name = next(name for name in where if where[name] == file)
            raise ValueError(f"{path / file} is missing: it should hold tensor {name}, and others")
        for name, tensor in read_header(path / file).items():
            if where.get(name) != file:
                raise ValueError(f"{path / file}: tensor {name} is not there by {INDEX}")
            tensors[name] = tensor
    for name, file in where.items():
        if name not in tensors:
            raise ValueError(f"{path / file}: tensor {name} is missing, {INDEX} says it is there")
    return tensors

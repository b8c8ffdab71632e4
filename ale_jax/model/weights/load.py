"""Loads weights from a checkpoint directly to their devices on the mesh."""

from __future__ import annotations

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ale_jax.config.architecture import PolicyShape
from ale_jax.model.params import Params
from ale_jax.model.weights.config import read_config
from ale_jax.model.weights.gguf_file import open_gguf
from ale_jax.model.weights.hub import locate
from ale_jax.model.weights.layout import Bounds, Checkpoint, Stored, is_stored, layout
from ale_jax.model.weights.safetensors_file import CONFIG, open_folder


def open_checkpoint(source: str | Path) -> Checkpoint:
    """Opens a folder in Hugging Face's layout, a .gguf file, or what the name of a model stands for
    (see hub.locate), which is fetched. No weight is read yet.

    ValueError, with the names of file and tensor, unless it holds a complete policy of a supported
    architecture.
    """
    path = locate(source)
    if path.is_dir():
        return open_folder(path)
    if path.is_file():
        return open_gguf(path)
    raise ValueError(
        f"no checkpoint at {path}: give a Hugging Face folder, a .gguf file or a model's name, "
        "ORGANIZATION/NAME"
    )


def read_shape(source: str | Path) -> PolicyShape:
    """Returns the shape of a policy, for which no weights are fetched. ValueError if there is none,
    or the architecture is not supported."""
    path = locate(source, weights=False)
    return read_config(path / CONFIG) if path.is_dir() else open_checkpoint(path).shape


def load_params(
    checkpoint: Checkpoint, dtype: jnp.dtype = jnp.float32, shardings: Params | None = None
) -> Params:
    """Returns the weights in `dtype`, each on the devices that `shardings` names (default: on one).

    shardings: a tree as from `sharding.param_shardings`. A device's part is read directly from the
    files, and no process reads more than its own devices hold. Weights are loaded one at a time:
    apart from the loaded ones, only the parts of one weight are in memory (dequantised ones briefly
    twice).
    """
    stored = layout(checkpoint.shape)
    if shardings is None:
        here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        shardings = jax.tree.map(lambda _: here, stored, is_leaf=is_stored)
    return jax.tree.map(
        lambda leaf, sharding: _load(checkpoint, leaf, np.dtype(dtype), sharding),
        stored,
        shardings,
        is_leaf=is_stored,
    )


def _load(
    checkpoint: Checkpoint, stored: Stored, dtype: np.dtype, sharding: jax.sharding.Sharding
) -> jax.Array:
    @functools.cache  # devices that hold the same part share it
    def part(bounds: Bounds) -> np.ndarray:
        return stored.read(bounds, lambda name, cut: checkpoint.tensors[name].read(cut), dtype)

    def read(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None
        return part(
            tuple(cut.indices(size)[:2] for cut, size in zip(index, stored.shape, strict=True))
        )

    array = jax.make_array_from_callback(stored.shape, sharding, read, dtype=dtype)
    return array.block_until_ready()  # until then the parts that were read stay in memory

"""A checkpoint that somebody else wrote: which policy it is, and any part of any tensor of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from ale_jax.model.shape import PolicyShape
from ale_jax.model.weights.layout import Bounds, tensor_shapes


class Tensor(Protocol):
    """A tensor in a file; nothing of it is in memory."""

    @property
    def file(self) -> Path: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def read(self, bounds: Bounds) -> np.ndarray:
        """The part within `bounds`, in the type it is stored in (dequantised, float32)."""


class Checkpoint(Protocol):
    """tensors: by their Hugging Face names; all that `shape` needs, in the right shapes."""

    @property
    def shape(self) -> PolicyShape: ...

    @property
    def tensors(self) -> Mapping[str, Tensor]: ...


def check_tensors(path: Path, tensors: Mapping[str, Tensor], shape: PolicyShape) -> None:
    """ValueError unless these are the tensors of such a policy, with names and shapes."""
    expected = tensor_shapes(shape)
    for name, tensor_shape in expected.items():
        if name not in tensors:
            raise ValueError(f"{path}: tensor {name} of shape {tensor_shape} is missing")
        if tensors[name].shape != tensor_shape:
            raise ValueError(
                f"{tensors[name].file}: tensor {name} has shape {tensors[name].shape}, "
                f"the model's is {tensor_shape}"
            )
    for name, tensor in tensors.items():
        if name not in expected:
            raise ValueError(f"{tensor.file}: tensor {name} is unexpected in such a model")

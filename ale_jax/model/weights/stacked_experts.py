"""Maps of experts that a checkpoint stores as a stack [E,out,in], read as if each expert had
tensors of its own, as in what transformers writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping
from pathlib import Path

import numpy as np

from ale_jax.model.families.decoder import MOST_EXPERTS
from ale_jax.model.weights.layout import Bounds, Tensor

# Name in a stack -> names of the maps whose rows follow each other in it.
_MAPS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


@dataclasses.dataclass(frozen=True)
class OfStack:
    """The rows from `start` of one expert's map in a stack."""

    stack: Tensor
    expert: int
    start: int
    rows: int

    @property
    def file(self) -> Path:
        return self.stack.file

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows, self.stack.shape[2]

    def read(self, bounds: Bounds) -> np.ndarray:
        (first, last), columns = bounds
        rows = self.start + first, self.start + last
        return self.stack.read(((self.expert, self.expert + 1), rows, columns))[0]


def apart(tensors: Mapping[str, Tensor], expected: Container[str]) -> dict[str, Tensor]:
    """Returns the tensors, with one for each expert and map in the place of a stack that is not
    expected as such."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        layer, _, last = name.rpartition(".experts.")
        maps = () if name in expected else _MAPS.get(last, ())
        size = tensor.shape
        if not maps or len(size) != 3 or size[0] > MOST_EXPERTS or size[1] % len(maps):
            found[name] = tensor
            continue
        rows = size[1] // len(maps)
        for expert in range(size[0]):
            for number, each in enumerate(maps):
                own = OfStack(tensor, expert, number * rows, rows)
                found[f"{layer}.experts.{expert}.{each}.weight"] = own
    return found

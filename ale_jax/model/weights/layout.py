"""One table describes how each weight is stored in a Hugging Face checkpoint. Everything else is
derived from it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import jax
import numpy as np

from ale_jax.config.architecture import PolicyShape
from ale_jax.model.families.family import LAYER, Family, Groups
from ale_jax.model.families.registry import FAMILIES
from ale_jax.model.params import Params, param_table


class Tensor(Protocol):
    """A tensor in a file; none of it is in memory."""

    @property
    def file(self) -> Path: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def read(self, bounds: Bounds) -> np.ndarray:
        """Returns the part within `bounds`, in its stored type; float32 if it is dequantised."""


class Checkpoint(Protocol):
    """The tensors of a policy, and its shape. tensors: by their Hugging Face names; all that
    `shape` needs, with the right shapes."""

    @property
    def shape(self) -> PolicyShape: ...

    @property
    def tensors(self) -> Mapping[str, Tensor]: ...


def check_tensors(path: Path, tensors: Mapping[str, Tensor], shape: PolicyShape) -> None:
    """Raises ValueError unless the names and shapes are those of a checkpoint of such a policy.
    Tensors that predict further tokens (see `Family`) may be there, and are not read."""
    expected = tensor_shapes(shape)
    further = FAMILIES[shape.family].further.format(layers=shape.num_layers)
    for name, tensor_shape in expected.items():
        if name not in tensors:
            raise ValueError(f"{path}: tensor {name} of shape {tensor_shape} is missing")
        if tensors[name].shape != tensor_shape:
            raise ValueError(
                f"{tensors[name].file}: tensor {name} has shape {tensors[name].shape}, "
                f"the model's is {tensor_shape}"
            )
    for name, tensor in tensors.items():
        if name not in expected and not (further and name.startswith(further)):
            raise ValueError(f"{tensor.file}: tensor {name} is unexpected in this model")


Bounds = tuple[tuple[int, int], ...]  # (start, stop) along each dim
ReadTensor = Callable[[str, Bounds], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Stored:
    """How one weight is stored in a checkpoint: as one tensor, or as one for each expert, alone or
    beside other weights.

    shape: that of the weight. groups: see `families.family.Storage`. axis: of the tensor, along
    which this weight begins at `start`, and all weights of it have `whole` rows; None: it is alone.
    blocks: the tensor has as many, in each of which this holds.
    """

    names: tuple[str, ...]
    groups: Groups
    shape: tuple[int, ...]
    axis: int | None = None
    start: int = 0
    whole: int = 0
    blocks: int = 1

    @property
    def is_per_expert(self) -> bool:
        return sum(map(len, self.groups)) < len(self.shape)

    @property
    def is_stack(self) -> bool:
        """Whether the first axis of the tensor counts maps."""
        return self.groups[0] == (0,) and [len(group) for group in self.groups] == [1, 1, 1]

    @property
    def own_shape(self) -> tuple[int, ...]:
        """The shape of this weight's part of a tensor."""
        return tuple(math.prod(self.shape[dim] for dim in group) for group in self.groups)

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        sizes = self.own_shape
        whole = self.whole * self.blocks
        return tuple(whole if i == self.axis else size for i, size in enumerate(sizes))

    def join(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Returns the tensor that this weight's part and those of the others make up, in their
        order."""
        if self.axis is None:
            (tensor,) = parts
            return tensor
        rest = self.tensor_shape[self.axis + 1 :]
        cut = [each.reshape(*each.shape[: self.axis], self.blocks, -1, *rest) for each in parts]
        return np.concatenate(cut, self.axis + 1).reshape(self.tensor_shape)

    def read(self, bounds: Bounds, read_tensor: ReadTensor, dtype: np.dtype) -> np.ndarray:
        """Returns the part of the weight within `bounds`. No more is read than the part needs, or
        the blocks that it is in.

        read_tensor: (name, bounds) -> that part of a tensor.
        """
        part = np.empty([stop - start for start, stop in bounds], dtype)
        if self.is_per_expert:
            for name, expert in zip(self.names[slice(*bounds[0])], part, strict=True):
                expert[...] = self._read_one(name, bounds, read_tensor)
        elif self.is_stack:  # only one map of it is in memory in the type that was read
            for expert, out in zip(range(*bounds[0]), part, strict=True):
                own = ((expert, expert + 1), *bounds[1:])
                out[...] = self._read_one(self.names[0], own, read_tensor)[0]
        else:
            part[...] = self._read_one(self.names[0], bounds, read_tensor)
        return part

    def write(self, weight: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        """Yields this weight's part of each of its tensors, with the tensor's name."""
        for name, part in zip(self.names, weight if self.is_per_expert else [weight], strict=True):
            yield name, part.transpose(self._tensor_order()).reshape(self.own_shape)

    def _read_one(self, name: str, bounds: Bounds, read_tensor: ReadTensor) -> np.ndarray:
        """One tensor's part, with the dims in the weight's order (without the dim of the experts).

        Along an axis that combines several dims, a part is contiguous only if the inner dims are
        whole. These are therefore read whole and sliced afterwards.
        """
        tensor_bounds, sizes, cuts = [], [], []
        for axis, group in enumerate(self.groups):
            if not group:  # an axis of size 1 that the weight has not
                tensor_bounds.append((0, 1))
                continue
            outer, *inner = group
            width = math.prod(self.shape[dim] for dim in inner)
            start, stop = bounds[outer]
            if axis == self.axis and self.blocks > 1:
                in_block = self.shape[outer] // self.blocks
                first, last = start // in_block, -(-stop // in_block)
                tensor_bounds.append((first * self.whole, last * self.whole))
                sizes.append((last - first) * in_block)
                cuts.append(slice(start - first * in_block, stop - first * in_block))
            else:
                first = self.start if axis == self.axis else 0
                tensor_bounds.append((first + start * width, first + stop * width))
                sizes.append(stop - start)
                cuts.append(slice(None))
            sizes += [self.shape[dim] for dim in inner]
            cuts += [slice(*bounds[dim]) for dim in inner]
        tensor = self._own_rows(read_tensor(name, tuple(tensor_bounds)))
        return tensor.reshape(sizes)[tuple(cuts)].transpose(np.argsort(self._tensor_order()))

    def _own_rows(self, tensor: np.ndarray) -> np.ndarray:
        """Of whole blocks of a tensor, this weight's rows."""
        if self.axis is None or self.blocks == 1:
            return tensor
        own = self.own_shape[self.axis] // self.blocks
        before, rest = tensor.shape[: self.axis], tensor.shape[self.axis + 1 :]
        by_block = tensor.reshape(*before, -1, self.whole, *rest)
        return by_block.take(range(self.start, self.start + own), axis=self.axis + 1)

    def _tensor_order(self) -> tuple[int, ...]:
        first = int(self.is_per_expert)
        return tuple(dim - first for group in self.groups for dim in group)


def is_stored(leaf: object) -> bool:
    return isinstance(leaf, Stored)


def layout(shape: PolicyShape) -> Params:
    """Returns how every weight is stored, as a tree of `Stored` in the layout of the weights
    themselves. ValueError if transformers has no such models."""
    if shape.family not in FAMILIES:
        raise ValueError("transformers has no models of this shape: it has no checkpoints")
    family, table = FAMILIES[shape.family], param_table(shape)

    def of_layer(number: int, params: Params) -> Params:
        return {name: _stored(family, name, params, number) for name in params}

    outside = {name: each for name, each in table.items() if name != "layers"}
    stored = {name: _stored(family, name, outside, None) for name in outside}
    return stored | {"layers": [of_layer(*each) for each in enumerate(table["layers"])]}


def _stored(family: Family, name: str, params: Params, layer: int | None) -> Stored:
    """How a weight is stored, among those of its layer."""
    tensor, param = family.tensor(name), params[name]
    experts = param.shape[0] if "{expert}" in tensor.name else 1
    names = tuple(tensor.name.format(layer=layer, expert=e) for e in range(experts))
    alone = Stored(names, tensor.groups, param.shape)
    if not tensor.fused:
        return alone
    rows = {
        each: Stored((), family.tensor(each).groups, params[each].shape).own_shape[tensor.axis]
        for each in tensor.fused
    }
    before = tensor.fused[: tensor.fused.index(name)]
    blocks = params[tensor.blocks].shape[1] if tensor.blocks else 1
    if tensor.interleaved:  # a row of each in each block
        blocks = rows[name]
    start, whole = sum(rows[each] for each in before) // blocks, sum(rows.values()) // blocks
    return dataclasses.replace(alone, axis=tensor.axis, start=start, whole=whole, blocks=blocks)


def filler_shapes(shape: PolicyShape) -> dict[str, tuple[int, ...]]:
    """Tensors that transformers expects and for which we have no weight: those of a Qwen2-MoE's
    shared expert of width 0, which contributes nothing."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer, kind in enumerate(shape.layers):
        if shape.family == "qwen2_moe" and kind.experts and not kind.experts.shared:
            prefix = LAYER.format(layer=layer) + "mlp.shared_expert"
            shapes[f"{prefix}.gate_proj.weight"] = (0, shape.width)
            shapes[f"{prefix}.up_proj.weight"] = (0, shape.width)
            shapes[f"{prefix}.down_proj.weight"] = (shape.width, 0)
            shapes[f"{prefix}_gate.weight"] = (1, shape.width)
    return shapes


def tensor_shapes(shape: PolicyShape) -> dict[str, tuple[int, ...]]:
    """Returns the name and shape of every tensor in a checkpoint of such a policy."""
    leaves = jax.tree.leaves(layout(shape), is_leaf=is_stored)
    shapes = {name: stored.tensor_shape for stored in leaves for name in stored.names}
    return shapes | filler_shapes(shape)

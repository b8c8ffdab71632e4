"""One table describes how each weight is stored in a Hugging Face checkpoint. Everything else is
derived from it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import jax
import numpy as np

from ale_jax.config.model import PolicyShape
from ale_jax.model.params import Param, Params, is_param, param_table


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
    """Raises ValueError unless the names and shapes are those of a checkpoint of such a policy."""
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
            raise ValueError(f"{tensor.file}: tensor {name} is unexpected in this model")


Bounds = tuple[tuple[int, int], ...]  # (start, stop) along each dim
ReadTensor = Callable[[str, Bounds], np.ndarray]
Groups = tuple[tuple[int, ...], ...]

_LAYER = "model.layers.{layer}."
_EXPERT = _LAYER + "mlp.experts.{expert}."

# Weight -> the name of its tensor, and for each axis of the tensor the dims of the weight that it
# combines, outermost first. A tensor with {expert} in its name is one index of the first dim.
#
# q_DNH, ((1, 2), (0,)): the tensor's first axis has N and H (row n * H + h), its second has D, as
# torch's linear layers store [out, in]. gate_EDF, ((2,), (1,)): E is not mentioned, because each
# expert has a tensor of its own, [F,D].
_TABLE: dict[str, tuple[str, Groups]] = {
    "embed_VD": ("model.embed_tokens.weight", ((0,), (1,))),
    "final_norm_D": ("model.norm.weight", ((0,),)),
    "head_DV": ("lm_head.weight", ((1,), (0,))),
    "attn_norm_D": (_LAYER + "input_layernorm.weight", ((0,),)),
    "q_DNH": (_LAYER + "self_attn.q_proj.weight", ((1, 2), (0,))),
    "k_DGH": (_LAYER + "self_attn.k_proj.weight", ((1, 2), (0,))),
    "v_DGH": (_LAYER + "self_attn.v_proj.weight", ((1, 2), (0,))),
    "q_norm_H": (_LAYER + "self_attn.q_norm.weight", ((0,),)),
    "k_norm_H": (_LAYER + "self_attn.k_norm.weight", ((0,),)),
    "q_bias_NH": (_LAYER + "self_attn.q_proj.bias", ((0, 1),)),
    "k_bias_GH": (_LAYER + "self_attn.k_proj.bias", ((0, 1),)),
    "v_bias_GH": (_LAYER + "self_attn.v_proj.bias", ((0, 1),)),
    "o_NHD": (_LAYER + "self_attn.o_proj.weight", ((2,), (0, 1))),
    "ffn_norm_D": (_LAYER + "post_attention_layernorm.weight", ((0,),)),
    "gate_DF": (_LAYER + "mlp.gate_proj.weight", ((1,), (0,))),
    "up_DF": (_LAYER + "mlp.up_proj.weight", ((1,), (0,))),
    "down_FD": (_LAYER + "mlp.down_proj.weight", ((1,), (0,))),
    "router_DE": (_LAYER + "mlp.gate.weight", ((1,), (0,))),
    "gate_EDF": (_EXPERT + "gate_proj.weight", ((2,), (1,))),
    "up_EDF": (_EXPERT + "up_proj.weight", ((2,), (1,))),
    "down_EFD": (_EXPERT + "down_proj.weight", ((2,), (1,))),
}


@dataclasses.dataclass(frozen=True)
class Stored:
    """How one weight is stored in a checkpoint: as one tensor, or as one for each expert.

    shape: that of the weight. groups: as in the table above.
    """

    names: tuple[str, ...]
    groups: Groups
    shape: tuple[int, ...]

    @property
    def is_per_expert(self) -> bool:
        return sum(map(len, self.groups)) < len(self.shape)

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        return tuple(math.prod(self.shape[dim] for dim in group) for group in self.groups)

    def read(self, bounds: Bounds, read_tensor: ReadTensor, dtype: np.dtype) -> np.ndarray:
        """Returns the part of the weight within `bounds`. No more is read than the part needs.

        read_tensor: (name, bounds) -> that part of a tensor.
        """
        part = np.empty([stop - start for start, stop in bounds], dtype)
        if self.is_per_expert:
            for name, expert in zip(self.names[slice(*bounds[0])], part, strict=True):
                expert[...] = self._read_one(name, bounds, read_tensor)
        else:
            part[...] = self._read_one(self.names[0], bounds, read_tensor)
        return part

    def write(self, weight: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        """Yields each tensor of the weight, with its name."""
        for name, part in zip(self.names, weight if self.is_per_expert else [weight], strict=True):
            yield name, part.transpose(self._tensor_order()).reshape(self.tensor_shape)

    def _read_one(self, name: str, bounds: Bounds, read_tensor: ReadTensor) -> np.ndarray:
        """One tensor's part, with the dims in the weight's order (without the dim of the experts).

        Along an axis that combines several dims, a part is contiguous only if the inner dims are
        whole. These are therefore read whole and sliced afterwards.
        """
        tensor_bounds, sizes, cuts = [], [], []
        for outer, *inner in self.groups:
            width = math.prod(self.shape[dim] for dim in inner)
            start, stop = bounds[outer]
            tensor_bounds.append((start * width, stop * width))
            sizes += [stop - start, *(self.shape[dim] for dim in inner)]
            cuts += [slice(None), *(slice(*bounds[dim]) for dim in inner)]
        tensor = read_tensor(name, tuple(tensor_bounds)).reshape(sizes)[tuple(cuts)]
        return tensor.transpose(np.argsort(self._tensor_order()))

    def _tensor_order(self) -> tuple[int, ...]:
        first = int(self.is_per_expert)
        return tuple(dim - first for group in self.groups for dim in group)


def is_stored(leaf: object) -> bool:
    return isinstance(leaf, Stored)


def layout(shape: PolicyShape) -> Params:
    """Returns how every weight is stored, as a tree of `Stored` in the layout of the weights
    themselves."""

    def stored(path: tuple[jax.tree_util.KeyEntry, ...], param: Param) -> Stored:
        template, groups = _TABLE[path[-1].key]
        layer = path[1].idx if len(path) == 3 else None
        experts = param.shape[0] if "{expert}" in template else 1
        names = tuple(template.format(layer=layer, expert=e) for e in range(experts))
        return Stored(names, groups, param.shape)

    return jax.tree_util.tree_map_with_path(stored, param_table(shape), is_leaf=is_param)


def filler_shapes(shape: PolicyShape) -> dict[str, tuple[int, ...]]:
    """Tensors that transformers expects and for which we have no weight. A policy with experts but
    without `qk_norm` is a Qwen2-MoE, whose shared expert has width 0 here and so contributes
    nothing."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(shape.num_layers):
        if shape.has_experts(layer) and not shape.qk_norm:
            prefix = _LAYER.format(layer=layer) + "mlp.shared_expert"
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

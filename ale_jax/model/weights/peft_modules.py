"""In which modules of transformers our linear maps lie, and how PEFT lays out an adapter there.

A module stores [out, in]; its adapter has A [rank, in] and B [out, rank]. All experts are one
parameter, whose A is [E, rank, in] and B [E, out, rank]. Where several of our maps share a module,
their A lie one below the other, and their B along a diagonal of blocks.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from ale_jax.config.architecture import PolicyShape
from ale_jax.model.lora import map_name
from ale_jax.model.params import Dims, Param, Params, param_table
from ale_jax.model.weights.layout import Stored, layout

CONFIG_FILE, TENSORS_FILE = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
EXPERTS = {"gate": "gate_up_proj", "up": "gate_up_proj", "down": "down_proj"}  # of transformers 5
Factors = tuple[np.ndarray, np.ndarray]  # A and B as above


@dataclasses.dataclass(frozen=True)
class Part:
    """One of our maps. name: of the weight. stored: how a checkpoint has it."""

    name: str
    param: Param
    stored: Stored

    @property
    def _dims(self) -> tuple[Dims, Dims, Dims]:
        assert self.param.matrix is not None, "only matrices have adapters"
        (inward, outward), sizes = self.param.matrix, self.param.shape
        stack, first = inward[0], len(inward)
        assert inward + outward == tuple(range(stack, len(sizes))), "inputs come first"
        return sizes[:stack], sizes[stack : stack + first], sizes[stack + first :]

    @property
    def rank_axis(self) -> int:
        """The axis of the rank in "b"."""
        return len(self._dims[0])

    def of_a(self, rank: int) -> tuple[Stored, Dims]:
        """Returns how A would be stored if it were the weight, and the shape of our "a"."""
        stack, inward, outward = self._dims
        alone = dataclasses.replace(self.stored, axis=None, start=0, whole=0, blocks=1)
        sizes = stack + inward + (rank,) + (1,) * (len(outward) - 1)
        return dataclasses.replace(alone, shape=sizes), (*stack, *inward, rank)

    def of_b(self, rank: int) -> tuple[Stored, Dims]:
        """The same of B and our "b"."""
        stack, inward, outward = self._dims
        sizes = stack + (rank,) + (1,) * (len(inward) - 1) + outward
        return dataclasses.replace(self.stored, shape=sizes), (*stack, rank, *outward)


@dataclasses.dataclass(frozen=True)
class Module:
    """A module of transformers, or a parameter of one for the experts of a layer.

    name: such as model.layers.0.self_attn.q_proj. parts: our maps in it, in their order.
    """

    name: str
    layer: int
    parts: tuple[Part, ...]

    @property
    def is_parameter(self) -> bool:
        return self.parts[0].stored.is_per_expert or self.parts[0].stored.is_stack

    @property
    def suffix(self) -> str:
        """The name within its layer."""
        return self.name.partition(f".layers.{self.layer}.")[2]

    def factors(self, adapters: Params) -> Factors:
        """Returns A and B of the adapters of this module's maps, which has some."""
        found = [adapters.get(part.name) for part in self.parts]
        rank = next(each for each in found if each)["a"].shape[-1]
        all_a, all_b = [], []
        for number, adapter in enumerate(found):
            if adapter:
                stored, _ = self.parts[number].of_a(rank)
                all_a.append(_turned(stored, _tensor(stored, np.asarray(adapter["a"]))))
                all_b.append(self._b_of(number, np.asarray(adapter["b"]), rank))
        return np.concatenate(all_a, axis=-2), np.concatenate(all_b, axis=-1)

    def _b_of(self, number: int, b: np.ndarray, rank: int) -> np.ndarray:
        """B of one of the maps, with zeros for the outputs of the others."""
        stored = [part.of_b(rank)[0] for part in self.parts]
        blocks = [
            _tensor(each, b if i == number else np.zeros(each.shape, b.dtype))
            for i, each in enumerate(stored)
        ]
        if stored[0].is_per_expert:
            return np.concatenate(blocks, axis=-2)
        return _turned(stored[0], stored[0].join(blocks))

    def adapters(
        self, a: np.ndarray, b: np.ndarray, rank: int, names: Sequence[str]
    ) -> dict[str, dict[str, np.ndarray]]:
        """Returns the adapters of this rank that A and B hold: those of all of its maps, with one A
        for all, or, where they have rank times as many, the blocks of those that `names` lists.
        ValueError if they are neither."""
        found, start = {}, 0
        if self.parts[0].stored.is_per_expert:
            rows = sum(part.stored.own_shape[0] for part in self.parts)
            _require(self.name, "B", b.shape[1:2], (rows,))
        for part in self.parts:
            (stored_a, shape_a), (stored_b, shape_b) = (
                each(a.shape[-2]) for each in (part.of_a, part.of_b)
            )
            own = b
            if stored_b.is_per_expert:  # beside each other here, but not in a checkpoint
                rows = stored_b.own_shape[0]
                own, start = b[:, start : start + rows], start + rows
            adapter = {
                "a": _read(self.name, "A", stored_a, a).reshape(shape_a),
                "b": _read(self.name, "B", stored_b, own).reshape(shape_b),
            }
            found[part.name] = adapter
        if a.shape[-2] == rank:
            return found
        if a.shape[-2] != rank * len(names):
            raise ValueError(f"{self.name} has rank {a.shape[-2]}, and lora.rank is {rank}")
        axis = {part.name: part.rank_axis for part in self.parts}
        return {
            name: _block(self.name, found[name], slice(n * rank, (n + 1) * rank), axis[name])
            for n, name in enumerate(names)
        }


def _block(
    module: str, adapter: dict[str, np.ndarray], rows: slice, axis: int
) -> dict[str, np.ndarray]:
    """A part of an adapter's rank, outside of which it is 0. axis: that of the rank in "b"."""
    b = np.moveaxis(adapter["b"], axis, 0)
    if np.count_nonzero(b) != np.count_nonzero(b[rows]):
        raise ValueError(
            f"{module}: its adapter is not one of rank {b[rows].shape[0]} for each map"
        )
    return {"a": adapter["a"][..., rows], "b": np.moveaxis(b[rows], 0, axis)}


def _require(module: str, factor: str, found: Dims, wanted: Dims) -> None:
    if found != wanted:
        raise ValueError(f"{module}: {factor} has shape {found}, the model's is {wanted}")


def key_of(module: Module, nested: set[int]) -> str:
    """The name of a module's adapter. PEFT wraps the experts' parameters one around the other,
    down_proj outermost. nested: the layers of which down_proj has an adapter."""
    if not module.is_parameter:
        return PREFIX + module.name
    experts, _, name = module.name.rpartition(".")
    is_inner = name == EXPERTS["gate"] and module.layer in nested
    return f"{PREFIX}{experts}{'.base_layer' * is_inner}"


def divisor(rank: int, rslora: bool) -> float:
    """Returns what alpha is divided by for an adapter's scale."""
    return math.sqrt(rank) if rslora else rank


def modules_of(shape: PolicyShape) -> list[Module]:
    """Returns the modules in which the linear maps of the layers lie."""
    found = []
    for number, (layer, table) in enumerate(
        zip(layout(shape)["layers"], param_table(shape)["layers"], strict=True)
    ):
        by_name: dict[str, list[Part]] = {}
        for name, param in table.items():
            if param.matrix:
                parts = by_name.setdefault(_module_name(name, layer[name]), [])
                parts.append(Part(name, param, layer[name]))
        found += [
            Module(name, number, tuple(sorted(parts, key=lambda part: part.stored.start)))
            for name, parts in by_name.items()
        ]
    return found


def _module_name(weight: str, stored: Stored) -> str:
    name = stored.names[0]
    if stored.is_per_expert:
        block = name.partition(".experts.")[0].replace("block_sparse_moe", "mlp")
    elif stored.is_stack and name.endswith(".weight"):  # Granite's, as a module of older versions
        block = name.rsplit(".", 2)[0]
    else:
        return name.removesuffix(".weight")
    return f"{block}.experts.{EXPERTS[map_name(weight)]}"


def _tensor(stored: Stored, array: np.ndarray) -> np.ndarray:
    tensors = [tensor for _, tensor in stored.write(array.reshape(stored.shape))]
    return np.stack(tensors) if stored.is_per_expert else tensors[0]


def _turned(stored: Stored, tensor: np.ndarray) -> np.ndarray:
    """Experts that a checkpoint has as [E, in, out], as [E, out, in], and back."""
    is_inward_first = stored.is_stack and stored.groups[1] < stored.groups[2]
    return tensor.swapaxes(-1, -2) if is_inward_first else tensor


def _read(module: str, factor: str, stored: Stored, tensor: np.ndarray) -> np.ndarray:
    tensor = _turned(stored, tensor)
    stack = (len(stored.names),) if stored.is_per_expert else ()
    _require(module, factor, tensor.shape, stack + stored.tensor_shape)

    def read_tensor(name: str, bounds: Sequence[tuple[int, int]]) -> np.ndarray:
        found = tensor[stored.names.index(name)] if stored.is_per_expert else tensor
        return found[tuple(slice(*each) for each in bounds)]

    whole = tuple((0, size) for size in stored.shape)
    return stored.read(whole, read_tensor, tensor.dtype)

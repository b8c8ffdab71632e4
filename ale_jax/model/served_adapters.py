"""Several adapters beside the same weights, of which each row of a batch uses one, or none (as in
S-LoRA, arXiv 2311.03285).

They lie side by side as one adapter, whose rank is the sum of theirs. A row's x A has the columns
of all of them, and those of others become 0 before the product with B. So one program computes any
mixture of rows by products of matrices alone, in experts as anywhere, and no weights are copied for
each row. It costs a product as wide as all ranks together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from ale_jax.config.architecture import PolicyShape
from ale_jax.model.compute import USES
from ale_jax.model.lora import adapter_table
from ale_jax.model.params import Params, is_param
from ale_jax.model.sharding import table_shardings

# Entries of a sampler's weights. Adapters are numbered from 1; 0 is none.
OF_COLUMN = "adapter_of_r"  # int32 [r]: which adapter each column of x A belongs to
OF_SLOT = "adapter_of_S"  # int32 [S]: which adapter the conversation of each slot uses


def side_by_side(adapters: Sequence[list[Params]], shape: PolicyShape) -> list[Params]:
    """Returns one adapter of each map of which some of the adapters have one, as arrays of the
    host. Within the columns of an adapter, those that a map of it lacks are 0.

    adapters: of each the maps of each layer, "a" [*stack, *in, rank] with its scale, and "b"
    [*stack, rank, *out]. The maps of one may differ in rank.
    """
    table = joined_table(adapters, shape)
    joined = jax.tree.map(lambda param: np.zeros(param.shape, np.float32), table, is_leaf=is_param)
    start = 0
    for layers, rank in zip(adapters, ranks(adapters), strict=True):
        for layer, (found, whole) in enumerate(zip(layers, joined, strict=True)):
            for name, ab in found.items():
                width = ab["a"].shape[-1]
                whole[name]["a"][..., start : start + width] = ab["a"]
                axis = table[layer][name]["b"].matrix[0][0]
                np.moveaxis(whole[name]["b"], axis, 0)[start : start + width] = np.moveaxis(
                    ab["b"], axis, 0
                )
        start += rank
    return joined


def ranks(adapters: Sequence[list[Params]]) -> list[int]:
    """Returns the number of columns of each adapter: the largest rank of its maps."""
    return [
        max(ab["a"].shape[-1] for layer in layers for ab in layer.values()) for layers in adapters
    ]


def of_column(adapters: Sequence[list[Params]]) -> np.ndarray:
    """Returns the entry OF_COLUMN of weights that have these adapters side by side."""
    widths = ranks(adapters)
    return np.repeat(np.arange(1, len(widths) + 1, dtype=np.int32), widths)


def placed(adapters: Sequence[list[Params]], shape: PolicyShape, mesh: Mesh) -> list[Params]:
    """Returns the adapters side by side, sharded over the mesh as the learner's are."""
    places = table_shardings(joined_table(adapters, shape), mesh)

    def place(array: np.ndarray, where: jax.sharding.Sharding) -> jax.Array:
        return jax.make_array_from_callback(array.shape, where, array.__getitem__)

    return jax.tree.map(place, side_by_side(adapters, shape), places)


def for_rows(params: Params, slot_B: jax.Array | None = None) -> Params:
    """Returns a sampler's weights for rows of these slots; None: of all slots, in order. With one
    adapter, or none, rows do not matter."""
    if OF_SLOT not in params:
        return params
    adapter_B = params[OF_SLOT] if slot_B is None else params[OF_SLOT][slot_B]
    return params | {USES: params[OF_COLUMN][None, None] == adapter_B[:, None, None]}


def joined_table(adapters: Sequence[list[Params]], shape: PolicyShape) -> Any:
    """Returns the adapter that these are side by side, as a tree of `Param`."""
    names = [sorted(set[str]().union(*layer)) for layer in zip(*adapters, strict=True)]
    return adapter_table(shape, names, sum(ranks(adapters)))

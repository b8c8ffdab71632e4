"""How the forward pass is computed: in which precision, and what is kept for the backward pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from ale_jax.model.params import Params

DTYPES = ("float32", "bfloat16")
# What the backward pass finds of each layer: all, the products with weights, or only its input.
REMAT = {
    "none": None,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "layers": jax.checkpoint_policies.nothing_saveable,
}
KEPT_EXACT = ("norm", "router")  # in the names of weights that are used in float32


@dataclasses.dataclass(frozen=True)
class Compute:
    """dtype: of matrix products and of what flows between layers; weights, gradients, norms,
    softmax, router and scores stay float32. remat: what is computed again in the backward pass:
    "none", "dots" (all but products with weights) or "layers" (all within a layer)."""

    dtype: str = "float32"
    remat: str = "none"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"compute_dtype {self.dtype!r} is unknown: choose one of {DTYPES}")
        if self.remat not in REMAT:
            raise ValueError(f"remat {self.remat!r} is unknown: choose one of {tuple(REMAT)}")


FLOAT32 = Compute()


def cast_layer(layer: Params, dtype: str) -> Params:
    """The weights of a layer as its products take them. Gradients come back through the cast, in
    the weights' own type."""

    def cast(name: str, weight: jax.Array) -> jax.Array:
        exact = any(part in name for part in KEPT_EXACT)
        return weight.astype(jnp.float32 if exact else dtype)

    return {name: cast(name, weight) for name, weight in layer.items()}


def recomputed(apply_layer: Callable, remat: str) -> Callable:
    """`apply_layer`, of whose results only what `remat` names is kept for the backward pass."""
    policy = REMAT[remat]
    return apply_layer if policy is None else jax.checkpoint(apply_layer, policy=policy)

"""How the forward pass is computed: in which precision, and what is kept for the backward pass."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from ale_jax.model.lora import merged
from ale_jax.model.params import Params
from ale_jax.model.shape import PolicyShape
from ale_jax.model.sharding import RULES, SAMPLER_RULES, param_shardings

DTYPES = ("float32", "bfloat16")
# What the backward pass finds of each layer: all, products with dense weights, or its input alone.
REMAT = {
    "none": None,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "layers": jax.checkpoint_policies.nothing_saveable,
}
# For the compiler, of sampler and learner. Else XLA leaves out roundings to bfloat16 where it fuses
# operations, in each program elsewhere, and the two disagree in log-probability by some 3e-3.
EXACT = {"xla_allow_excess_precision": False}
KEPT_EXACT = ("norm", "router")  # in the names of weights that are used in float32


@dataclasses.dataclass(frozen=True)
class Compute:
    """dtype: of matrix products and of what flows between layers; weights, gradients, norms,
    softmax, router and scores stay float32. remat: what is computed again in the backward pass:
    "none", "dots" (all but products with dense weights) or "layers" (all within a layer)."""

    dtype: str = "float32"
    remat: str = "none"

    def __post_init__(self) -> None:
        assert self.dtype in DTYPES and self.remat in REMAT, self


FLOAT32 = Compute()


def cast_layer(layer: Params, dtype: str) -> Params:
    """Weights by name as products take them. Gradients come back through the cast in the weights'
    own type."""

    def cast(name: str, weight: jax.Array) -> jax.Array:
        exact = any(part in name for part in KEPT_EXACT)
        return weight.astype(jnp.float32 if exact else dtype)

    return {name: cast(name, weight) for name, weight in layer.items()}


def sampling_weights(
    params: Params, shape: PolicyShape, compute: Compute, mesh: Mesh | None = None
) -> Params:
    """What a sampler is given: adapters merged, in the type of the learner's products, so that both
    compute the same, and each weight where a decode step wants it (SAMPLER_RULES): they travel once
    and not in every step. The same arrays where there is nothing to do."""
    if not has_own_weights(compute, "adapters" in params, mesh):
        return params
    return _sampling_weights(params, shape, compute.dtype, mesh)


def has_own_weights(compute: Compute, adapted: bool, mesh: AbstractMesh | Mesh | None) -> bool:
    """Whether a sampler needs other arrays than the learner's (adapted: if there are adapters)."""
    is_cut = mesh is not None and any(mesh.shape[axis] > 1 for axis in RULES["embed"])
    return adapted or compute.dtype != "float32" or is_cut


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _sampling_weights(params: Params, shape: PolicyShape, dtype: str, mesh: Mesh | None) -> Params:
    params = cast_weights(merged(params), dtype)
    if mesh is None:
        return params
    return jax.lax.with_sharding_constraint(params, param_shardings(shape, mesh, SAMPLER_RULES))


def cast_weights(params: Params, dtype: str) -> Params:
    """As `cast_layer`, of a whole policy without adapters."""
    layers = [cast_layer(layer, dtype) for layer in params["layers"]]
    return cast_layer({k: w for k, w in params.items() if k != "layers"}, dtype) | {
        "layers": layers
    }


def recomputed(apply_layer: Callable, remat: str) -> Callable:
    """`apply_layer`, of whose results only what `remat` names is kept for the backward pass."""
    policy = REMAT[remat]
    return apply_layer if policy is None else jax.checkpoint(apply_layer, policy=policy)

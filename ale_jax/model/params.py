"""One table describes every weight: shape, logical axes, init. All else is derived from it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ale_jax.config.model import PolicyShape

Params = dict[str, Any]  # nested: {"embed_VD": array, "layers": [{...}, ...], ...}
Init = Callable[[jax.Array, tuple[int, ...], jnp.dtype], jax.Array]


Dims = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Param:
    """One weight: its shape, the logical axis of each dimension (see sharding.RULES), its init.

    matrix: (input dims, output dims) where the weight is a linear map, or a stack of them over its
    other dims; None for embeddings, norm scales and the router, whose rows are looked up or chosen
    one by one. Optimizers that treat matrices differently (Muon) need it.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    init: Init
    matrix: tuple[Dims, Dims] | None = None

    def __post_init__(self) -> None:
        assert len(self.shape) == len(self.axes), (self.shape, self.axes)


# Weights that write into the residual stream start small. Each layer is then near the identity at
# first, and a token's own embedding can still be read after all layers. Learning to copy depends on
# that.
WRITER_GAIN = 0.1


def _normal(fan_in: int, gain: float = 1.0) -> Init:
    return jax.nn.initializers.normal(stddev=gain / math.sqrt(fan_in))


_ONES, _ZEROS = jax.nn.initializers.ones, jax.nn.initializers.zeros


def param_table(shape: PolicyShape) -> Params:
    """Returns the weights of a policy as a tree of `Param`, in the layout of the arrays
    themselves."""
    V, D = shape.vocab_size, shape.width
    table: Params = {
        "embed_VD": Param((V, D), ("vocab", "embed"), _normal(D)),
        "layers": [_layer_table(shape, i) for i in range(shape.num_layers)],
        "final_norm_D": Param((D,), ("norm",), _ONES),
    }
    if not shape.tie_embeddings:
        table["head_DV"] = Param((D, V), ("embed", "vocab"), _normal(D))
    return table


def _layer_table(shape: PolicyShape, layer: int) -> Params:
    D, N, G, H = shape.width, shape.num_heads, shape.num_kv_heads, shape.head_width
    return {
        "attn_norm_D": Param((D,), ("norm",), _ONES),
        "q_DNH": Param((D, N, H), ("embed", "heads", "head"), _normal(D), ((0,), (1, 2))),
        "k_DGH": Param((D, G, H), ("embed", "kv_heads", "head"), _normal(D), ((0,), (1, 2))),
        "v_DGH": Param((D, G, H), ("embed", "kv_heads", "head"), _normal(D), ((0,), (1, 2))),
        **_qk_norm_table(shape),
        **_bias_table(shape),
        "o_NHD": Param(
            (N, H, D), ("heads", "head", "embed"), _normal(N * H, WRITER_GAIN), ((0, 1), (2,))
        ),
        "ffn_norm_D": Param((D,), ("norm",), _ONES),
        **(_expert_table(shape) if shape.has_experts(layer) else _dense_table(shape)),
    }


def _qk_norm_table(shape: PolicyShape) -> Params:
    scale = Param((shape.head_width,), ("norm",), _ONES)
    return {"q_norm_H": scale, "k_norm_H": scale} if shape.qk_norm else {}


def _bias_table(shape: PolicyShape) -> Params:
    if not shape.qkv_bias:
        return {}
    N, G, H = shape.num_heads, shape.num_kv_heads, shape.head_width
    kv = Param((G, H), ("kv_heads", "head"), _ZEROS)
    return {"q_bias_NH": Param((N, H), ("heads", "head"), _ZEROS), "k_bias_GH": kv, "v_bias_GH": kv}


def _dense_table(shape: PolicyShape) -> Params:
    D, F = shape.width, shape.mlp_width
    return {
        "gate_DF": Param((D, F), ("embed", "ffw"), _normal(D), ((0,), (1,))),
        "up_DF": Param((D, F), ("embed", "ffw"), _normal(D), ((0,), (1,))),
        "down_FD": Param((F, D), ("ffw", "embed"), _normal(F, WRITER_GAIN), ((0,), (1,))),
    }


def _expert_table(shape: PolicyShape) -> Params:
    D, E, F = shape.width, shape.num_experts, shape.expert_width
    return {
        "router_DE": Param((D, E), ("embed", None), _normal(D)),
        "gate_EDF": Param((E, D, F), ("experts", "embed", "ffw"), _normal(D), ((1,), (2,))),
        "up_EDF": Param((E, D, F), ("experts", "embed", "ffw"), _normal(D), ((1,), (2,))),
        "down_EFD": Param(
            (E, F, D), ("experts", "ffw", "embed"), _normal(F, WRITER_GAIN), ((1,), (2,))
        ),
    }


def is_param(leaf: object) -> bool:
    return isinstance(leaf, Param)


def init_params(key: jax.Array, shape: PolicyShape, dtype: jnp.dtype = jnp.float32) -> Params:
    """Draws random weights of a policy."""
    return init_table(key, param_table(shape), dtype)


def init_table(key: jax.Array, table: Params, dtype: jnp.dtype = jnp.float32) -> Params:
    """Draws random weights; the key of each is derived from its index in the table."""
    leaves, tree = jax.tree.flatten(table, is_leaf=is_param)
    arrays = [p.init(jax.random.fold_in(key, i), p.shape, dtype) for i, p in enumerate(leaves)]
    return jax.tree.unflatten(tree, arrays)


def count_params(shape: PolicyShape) -> tuple[int, int]:
    """(all weights, weights active for one token): only K of E experts are active."""
    total = active = 0
    for p in jax.tree.leaves(param_table(shape), is_leaf=is_param):
        size = math.prod(p.shape)
        total += size
        routed = "experts" in p.axes
        active += size * shape.experts_per_token // shape.num_experts if routed else size
    return total, active

"""Weights that are rounded to the type of products once for all microbatches of a step.

A layer's rounded weights stand in place of its own: each is used once, so that its gradient is the
same number in either type. Embedding and head are used by many tokens, whose gradients are summed
in float32. Theirs lie beside them.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from ale_jax.model.compute import cast_layer
from ale_jax.model.layers import SCANNED
from ale_jax.model.lora import trained
from ale_jax.model.params import Params

ROUNDED = "rounded"  # name of the weights' entry that has embedding and head
_ENDS = "embed_VD", "head_DV"


def rounded(params: Params, dtype: str) -> Params:
    """Returns the entries of weights that are rounded, to be put over theirs.

    Not the layers of deep models: the scan rounds them as it stacks them, and a copy beside the
    stack would take 2 bytes for each weight.
    """
    ends = {name: params[name].astype(dtype) for name in _ENDS if name in params}
    if len(params["layers"]) >= SCANNED:
        return {ROUNDED: ends}
    return {"layers": [cast_layer(layer, dtype) for layer in params["layers"]], ROUNDED: ends}


def abstract_rounded(params: Params, dtype: str) -> Params:
    """Returns shapes, types and places of what `rounded` returns. params: arrays, or theirs."""
    copies = jax.eval_shape(partial(rounded, dtype=dtype), params)
    own = params | {ROUNDED: {name: params[name] for name in copies[ROUNDED]}}
    return jax.tree.map(
        lambda copy, own: jax.ShapeDtypeStruct(copy.shape, copy.dtype, sharding=own.sharding),
        *(copies, {name: own[name] for name in copies}),
    )


def with_rounded(params: Params, copies: Params) -> tuple[Params, Params]:
    """Returns the part of rounded weights that is trained, and all. copies: of `rounded`."""
    params = params | {name: copy for name, copy in copies.items() if name != ROUNDED}
    return trained(params), params | copies


def head_alone(params: Params, name: str) -> Params:
    """Returns the head of this name, and the rounded one if there is one."""
    head = {name: params[name]}
    return head | {ROUNDED: {name: params[ROUNDED][name]}} if ROUNDED in params else head


def in_type(params: Params, name: str, dtype: jnp.dtype) -> jax.Array:
    """Returns the head of this name in the type of a product. Its gradient is of its own type."""
    if ROUNDED not in params:
        return params[name].astype(dtype)
    return _instead(params[name], params[ROUNDED][name])


@jax.custom_vjp
def _instead(own: jax.Array, rounded: jax.Array) -> jax.Array:
    return rounded


def _instead_backward(_: None, d_rounded: jax.Array) -> tuple[jax.Array, None]:
    return d_rounded.astype(jnp.float32), None


_instead.defvjp(lambda own, rounded: (rounded, None), _instead_backward)


@jax.custom_vjp
def rows_instead(own_VD: jax.Array, rounded_VD: jax.Array, row_BT: jax.Array) -> jax.Array:
    """Returns rows [B,T,D] of a rounded table. The gradients of each row are summed in float32, and
    are those of its own table."""
    return rounded_VD[row_BT]


def _rows_forward(own_VD: jax.Array, rounded_VD: jax.Array, row_BT: jax.Array):
    return rounded_VD[row_BT], (rounded_VD, row_BT)


def _rows_backward(kept, d_BTD: jax.Array):
    rounded_VD, row_BT = kept
    nothing_VD = jnp.zeros(rounded_VD.shape, jnp.float32)
    return nothing_VD.at[row_BT].add(d_BTD.astype(jnp.float32)), None, None


rows_instead.defvjp(_rows_forward, _rows_backward)

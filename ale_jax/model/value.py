"""A critic: the policy's own kind of decoder, with one number per token instead of a vocabulary."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from ale_jax.model.compute import FLOAT32, Compute
from ale_jax.model.moe import RouterStats
from ale_jax.model.params import Param, Params, param_table
from ale_jax.model.policy import hidden_states
from ale_jax.model.shape import PolicyShape

HEAD = "value_D"


def value_table(shape: PolicyShape) -> Params:
    """The weights of a critic, as `param_table` has a policy's."""
    table = param_table(dataclasses.replace(shape, tie_embeddings=True))  # no head for tokens
    # Zeros: an untrained critic says 0 of every state, and not noise that GAE would pass on.
    return table | {HEAD: Param((shape.width,), ("norm",), jax.nn.initializers.zeros)}


def token_values(
    params: Params,
    tokens_BT: jax.Array,
    position_BT: jax.Array,
    segment_BT: jax.Array,
    shape: PolicyShape,
    compute: Compute = FLOAT32,
) -> tuple[jax.Array, list[RouterStats]]:
    """V(s_t) of what stands before each token in its segment, float32 [B, T], and the routers'
    statistics. 0 on a segment's first token, which has nothing before it."""
    hidden_BTD, stats = hidden_states(params, tokens_BT, position_BT, segment_BT, shape, compute)
    # In float32 and no matrix product: nothing may round it.
    value_BT = (hidden_BTD.astype(jnp.float32) * params[HEAD][None, None]).sum(axis=-1)
    return jnp.where(position_BT > 0, jnp.roll(value_BT, 1, axis=1), 0.0), stats

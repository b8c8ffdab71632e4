"""Runs new tokens of many conversations through all layers, each attending to its own cache."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from ale_jax.config.architecture import PolicyShape
from ale_jax.model.compute import scaled
from ale_jax.model.layers import feed_forward, final_hidden, residual_blocks
from ale_jax.model.lora import adapted_layers
from ale_jax.model.memory import Memory, NewTokens, mix
from ale_jax.model.params import Params


def extend(
    params: Params,
    memory: list[Memory],
    tokens_BT: jax.Array,
    start_B: jax.Array,
    count_B: jax.Array,
    shape: PolicyShape,
) -> tuple[list[Memory], jax.Array, jax.Array | None]:
    """Runs B rows of new tokens, appended to their conversations from position `start_B` on.

    The first `count_B` tokens of each row are real; the others are not stored. In each layer all
    rows are written before any is read, so that consecutive chunks of one conversation may be rows
    of one call. Returns the memory, the final hidden states [B,T,D], and the experts chosen in the
    layers that have experts, [B,T,L,K] int16 (None if no layer has any).
    """
    offset_BT = jnp.arange(tokens_BT.shape[1])[None, :]
    new = NewTokens(start_B[:, None] + offset_BT, offset_BT < count_B[:, None])
    x_BTD = scaled(params["embed_VD"][tokens_BT], shape.embed_scale)
    extended, expert_LBTK = [], []
    layers = adapted_layers(params)
    for kind, layer, layer_memory in zip(shape.layers, layers, memory, strict=True):
        mixed = partial(mix, layer, memory=layer_memory, new=new, kind=kind)
        feed = partial(feed_forward, layer, kind=kind)
        x_BTD, layer_memory, stats = residual_blocks(layer, x_BTD, kind, mixed, feed)
        extended.append(layer_memory)
        if stats is not None:
            expert_LBTK.append(stats.expert_TK.reshape(*tokens_BT.shape, -1))
    expert_BTLK = jnp.stack(expert_LBTK, axis=2).astype(jnp.int16) if expert_LBTK else None
    return extended, final_hidden(params, x_BTD, shape), expert_BTLK

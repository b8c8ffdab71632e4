"""The key/value cache: one slot per conversation, all of the same size, kept from turn to turn."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from ale_jax.model.layers import attend, feed_forward, project_qkv, rms_norm
from ale_jax.model.params import Params
from ale_jax.model.shape import PolicyShape


@struct.dataclass
class Cache:
    """Keys and values of every layer, [L][S,G,M,H]; M is the slot size in tokens.

    Heads stand before tokens, so that attention is one matrix product per (slot, head) and no
    transposed copy of the cache is made in a decode step.

    What lies at or behind a conversation's length is garbage that no mask lets through, so that a
    slot needs no cleaning before its next use.
    """

    k_LSGMH: list[jax.Array]
    v_LSGMH: list[jax.Array]

    @property
    def num_slots(self) -> int:
        return self.k_LSGMH[0].shape[0]

    @property
    def slot_tokens(self) -> int:
        return self.k_LSGMH[0].shape[2]


def empty_cache(
    shape: PolicyShape, num_slots: int, slot_tokens: int, dtype: jnp.dtype = jnp.float32
) -> Cache:
    size = (num_slots, shape.num_kv_heads, slot_tokens, shape.head_width)
    layers = range(shape.num_layers)
    return Cache([jnp.zeros(size, dtype) for _ in layers], [jnp.zeros(size, dtype) for _ in layers])


def extend(
    params: Params,
    cache: Cache,
    slot_B: jax.Array,
    tokens_BT: jax.Array,
    start_B: jax.Array,
    shape: PolicyShape,
) -> tuple[Cache, jax.Array]:
    """Runs T new tokens of B conversations, appending to their slots from position `start_B` on.

    Returns the cache and the final hidden states [B,T,D]. Rows that are not wanted name the slot
    `num_slots`: their writes fall outside and are dropped. Tokens that pad a row on the right
    write garbage behind the conversation's length, where the next tokens overwrite it.
    """
    position_BT = start_B[:, None] + jnp.arange(tokens_BT.shape[1])[None, :]
    mask_BTM = jnp.arange(cache.slot_tokens)[None, None, :] <= position_BT[:, :, None]
    write = (slot_B[:, None], slice(None), position_BT)
    x_BTD = params["embed_VD"][tokens_BT]
    keys, values = [], []
    for layer, k_SGMH, v_SGMH in zip(params["layers"], cache.k_LSGMH, cache.v_LSGMH, strict=True):
        q, k, v = project_qkv(layer, x_BTD, position_BT, shape)
        k_SGMH = k_SGMH.at[write].set(k.astype(k_SGMH.dtype), mode="drop")
        v_SGMH = v_SGMH.at[write].set(v.astype(v_SGMH.dtype), mode="drop")
        keys.append(k_SGMH)
        values.append(v_SGMH)
        x_BTD = x_BTD + attend(layer, q, _rows(k_SGMH, slot_B), _rows(v_SGMH, slot_B), mask_BTM)
        x_BTD = x_BTD + feed_forward(layer, x_BTD, shape)[0]
    hidden_BTD = rms_norm(x_BTD, params["final_norm_D"], shape.norm_eps)
    return Cache(keys, values), hidden_BTD


def _rows(cache_SGMH: jax.Array, slot_B: jax.Array) -> jax.Array:
    if slot_B.shape[0] == cache_SGMH.shape[0]:  # a decode step: every slot, in order; no copy
        return cache_SGMH
    return cache_SGMH.at[slot_B].get(mode="clip")

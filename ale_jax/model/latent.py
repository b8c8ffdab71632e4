"""Multi-head latent attention (arXiv 2405.04434): keys and values of all heads are linear maps of
one latent per token."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ale_jax.config.architecture import Latent, Norm
from ale_jax.model.compute import linear
from ale_jax.model.layers import rms_norm
from ale_jax.model.params import Params
from ale_jax.model.rope import rotary


def expanded_qkv(
    layer: Params, x_BTD: jax.Array, position_BT: jax.Array, kind: Latent
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns queries, keys and values of each head, [B,T,N,H], of a block's input. Values have a
    width of their own."""
    q_BTNH = latent_queries(layer, x_BTD, position_BT, kind)
    stored_BTO = stored_latents(layer, x_BTD, position_BT, kind)
    latent_BTO, rope_BTH = jnp.split(stored_BTO, [kind.kv_rank], axis=-1)
    kv_BTNH = linear(layer, "kv_up_ONH", latent_BTO)
    k_BTNH, v_BTNH = jnp.split(kv_BTNH, [kind.nope_width], axis=-1)
    shared_BTNH = jnp.broadcast_to(rope_BTH[:, :, None], (*k_BTNH.shape[:-1], kind.rope.width))
    return q_BTNH, jnp.concatenate([k_BTNH, shared_BTNH], axis=-1), v_BTNH


def latent_queries(
    layer: Params, x_BTD: jax.Array, position_BT: jax.Array, kind: Latent
) -> jax.Array:
    """Returns the queries [B,T,N,H], the last part of each rotated."""
    if kind.q_rank:
        latent_BTO = _down(layer, "q", x_BTD, kind)
        latent_BTO = rms_norm(latent_BTO, layer["q_norm_O"], Norm(kind.eps))
        q_BTNH = linear(layer, "q_up_ONH", latent_BTO)
    else:
        q_BTNH = linear(layer, "q_DNH", x_BTD)
    plain_BTNH, turned_BTNH = jnp.split(q_BTNH, [kind.nope_width], axis=-1)
    turned_BTNH = rotary(turned_BTNH, position_BT, kind.rope)
    return jnp.concatenate([plain_BTNH, turned_BTNH], axis=-1)


def stored_latents(
    layer: Params, x_BTD: jax.Array, position_BT: jax.Array, kind: Latent
) -> jax.Array:
    """Returns what keys and values of each token are made of: its latent, normalised, and then the
    rotated key, [B,T,O]."""
    latent_BTO, key_BTH = jnp.split(_down(layer, "kv", x_BTD, kind), [kind.kv_rank], axis=-1)
    latent_BTO = rms_norm(latent_BTO, layer["kv_norm_O"], Norm(kind.eps))
    key_BTH = rotary(key_BTH[:, :, None], position_BT, kind.rope)[:, :, 0]
    return jnp.concatenate([latent_BTO, key_BTH], axis=-1)


def _down(layer: Params, name: str, x_BTD: jax.Array, kind: Latent) -> jax.Array:
    latent_BTO = linear(layer, f"{name}_down_DO", x_BTD)
    return latent_BTO + layer[f"{name}_down_bias_O"][None, None] if kind.bias else latent_BTO

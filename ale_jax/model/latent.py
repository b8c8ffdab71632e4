"""Multi-head latent attention (arXiv 2405.04434): keys and values of all heads are linear maps of
one latent per token.

The learner expands keys and values. The engine keeps the latents alone: what makes keys of latents
is applied to the queries instead, and what makes values of them to the sum of latents, so that all
heads attend to the latents themselves ("absorbed" weights, section 2.1.2).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ale_jax.config.architecture import Latent, Norm
from ale_jax.model.compute import USES, Adapted, linear, used, weight
from ale_jax.model.layers import normalise
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


def absorbed_queries(
    layer: Params, x_BTD: jax.Array, position_BT: jax.Array, kind: Latent
) -> jax.Array:
    """Returns queries [B,T,N,O] whose products with what `stored_latents` returns are those of
    queries and keys."""
    q_BTNH = latent_queries(layer, x_BTD, position_BT, kind)
    plain_BTNH, turned_BTNH = jnp.split(q_BTNH, [kind.nope_width], axis=-1)
    up_ONH, keys = weight(layer, "kv_up_ONH", x_BTD.dtype), slice(kind.nope_width)
    absorbed_BTNO = _absorbed(plain_BTNH, up_ONH, keys, _uses(layer))
    return jnp.concatenate([absorbed_BTNO, turned_BTNH], axis=-1)


def values_of(layer: Params, out_BTNO: jax.Array, kind: Latent) -> jax.Array:
    """Returns the heads' sums of values, [B,T,N,H], of those of what is stored."""
    up_ONH, values = weight(layer, "kv_up_ONH", out_BTNO.dtype), slice(kind.nope_width, None)
    return _expanded(out_BTNO[..., : kind.kv_rank], up_ONH, values, _uses(layer))


def _uses(layer: Params) -> jax.Array | None:
    """Which columns of x A the heads of each row use, [B,1,1,r]; see `compute.USES`."""
    return layer[USES][:, :, None] if USES in layer else None


def _absorbed(
    q_BTNH: jax.Array, up_ONH: jax.Array | Adapted, part: slice, uses: jax.Array | None
) -> jax.Array:
    """Queries times a part of what each head's map makes of latents, transposed, [B,T,N,O]."""
    if not isinstance(up_ONH, Adapted):
        return jnp.einsum("btnh,onh->btno", q_BTNH, up_ONH[..., part])
    inner_BTNr = used(jnp.einsum("btnh,rnh->btnr", q_BTNH, up_ONH.b[..., part]), uses)
    beside_BTNO = jnp.einsum("btnr,or->btno", inner_BTNr, up_ONH.a)
    return _absorbed(q_BTNH, up_ONH.base, part, uses) + beside_BTNO


def _expanded(
    x_BTNO: jax.Array, up_ONH: jax.Array | Adapted, part: slice, uses: jax.Array | None
) -> jax.Array:
    """Each head's x times a part of its map, [B,T,N,H]."""
    if not isinstance(up_ONH, Adapted):
        return jnp.einsum("btno,onh->btnh", x_BTNO, up_ONH[..., part])
    inner_BTNr = used(jnp.einsum("btno,or->btnr", x_BTNO, up_ONH.a), uses)
    beside_BTNH = jnp.einsum("btnr,rnh->btnh", inner_BTNr, up_ONH.b[..., part])
    return _expanded(x_BTNO, up_ONH.base, part, uses) + beside_BTNH


def latent_queries(
    layer: Params, x_BTD: jax.Array, position_BT: jax.Array, kind: Latent
) -> jax.Array:
    """Returns the queries [B,T,N,H], the last part of each rotated."""
    if kind.q_rank:
        latent_BTO = _down(layer, "q", x_BTD, kind)
        latent_BTO = normalise(latent_BTO, layer["q_norm_O"], Norm(kind.eps))
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
    latent_BTO = normalise(latent_BTO, layer["kv_norm_O"], Norm(kind.eps))
    key_BTH = rotary(key_BTH[:, :, None], position_BT, kind.rope)[:, :, 0]
    return jnp.concatenate([latent_BTO, key_BTH], axis=-1)


def _down(layer: Params, name: str, x_BTD: jax.Array, kind: Latent) -> jax.Array:
    latent_BTO = linear(layer, f"{name}_down_DO", x_BTD)
    return latent_BTO + layer[f"{name}_down_bias_O"][None, None] if kind.bias else latent_BTO

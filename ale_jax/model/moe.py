"""Mixture of experts: a top-k router, dropless dispatch in sorted blocks, the balancing loss."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ale_jax.model.params import Params
from ale_jax.model.shape import PolicyShape


class RouterStats(NamedTuple):
    """Per token: softmax over the experts [T,E], and which K were chosen [T,K]."""

    prob_TE: jax.Array
    expert_TK: jax.Array


def route(
    router_DE: jax.Array, x_TD: jax.Array, shape: PolicyShape
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Router probabilities [T,E], the K largest as weights [T,K], and their experts [T,K]."""
    prob_TE = jax.nn.softmax((x_TD @ router_DE).astype(jnp.float32), axis=-1)
    weight_TK, expert_TK = jax.lax.top_k(prob_TE, shape.experts_per_token)
    if shape.norm_topk_prob:
        weight_TK = weight_TK / weight_TK.sum(axis=-1, keepdims=True)
    return prob_TE, weight_TK.astype(x_TD.dtype), expert_TK


def moe(layer: Params, x_TD: jax.Array, shape: PolicyShape) -> tuple[jax.Array, RouterStats]:
    """Sum over each token's K experts of weight * SwiGLU_expert(x). No token is ever dropped."""
    prob_TE, weight_TK, expert_TK = route(layer["router_DE"], x_TD, shape)
    if x_TD.shape[0] * shape.experts_per_token <= 2 * shape.num_experts * _MIN_BLOCK:
        out_TD = _all_experts(layer, x_TD, weight_TK, expert_TK)
    else:
        out_TD = _sorted_blocks(layer, x_TD, weight_TK, expert_TK)
    return out_TD, RouterStats(prob_TE, expert_TK)


_MIN_BLOCK = 8  # rows; smaller blocks spend more on reading weights than on multiplying


def _all_experts(
    layer: Params, x_TD: jax.Array, weight_TK: jax.Array, expert_TK: jax.Array
) -> jax.Array:
    """Every expert on every token: for the few tokens of a decode step sorting costs more."""
    E = layer["gate_EDF"].shape[0]
    gate = jax.nn.silu(jnp.einsum("td,edf->etf", x_TD, layer["gate_EDF"]))
    hidden_ETF = gate * jnp.einsum("td,edf->etf", x_TD, layer["up_EDF"])
    chosen_TKE = jax.nn.one_hot(expert_TK, E, dtype=x_TD.dtype)
    weight_ET = jnp.einsum("tk,tke->et", weight_TK, chosen_TKE)
    return jnp.einsum("etf,efd->td", hidden_ETF * weight_ET[..., None], layer["down_EFD"])


def _sorted_blocks(
    layer: Params, x_TD: jax.Array, weight_TK: jax.Array, expert_TK: jax.Array
) -> jax.Array:
    """Rows sorted by expert, each expert's run padded to whole blocks; one matmul per block.

    The number of blocks has the static bound R/block + E, so that any routing fits: dropless. The
    work is R + E*block/2 rows on average, where computing every expert would be E*T.
    """
    (T, D), K = x_TD.shape, weight_TK.shape[1]
    E, R = layer["gate_EDF"].shape[0], T * K
    block = _block_rows(R, E)
    num_blocks = -(-R // block) + E
    expert_R = expert_TK.reshape(R)
    order_R = jnp.argsort(expert_R, stable=True)
    count_E = jnp.bincount(expert_R, length=E)
    blocks_E = -(-count_E // block)
    first_row_E = (jnp.cumsum(blocks_E) - blocks_E) * block
    sorted_expert_R = expert_R[order_R]
    rank_R = jnp.arange(R) - (jnp.cumsum(count_E) - count_E)[sorted_expert_R]
    place_R = first_row_E[sorted_expert_R] + rank_R  # row of the block layout
    # Padding rows read token T, a row of zeros, and SwiGLU(0) = 0.
    source_P = jnp.full((num_blocks * block,), T, jnp.int32).at[place_R].set(order_R // K)
    x_padded = jnp.concatenate([x_TD, jnp.zeros((1, D), x_TD.dtype)])
    x_QbD = x_padded[source_P].reshape(num_blocks, block, D)
    expert_Q = jnp.searchsorted(jnp.cumsum(blocks_E), jnp.arange(num_blocks), side="right")
    expert_Q = jnp.minimum(expert_Q, E - 1)  # unused blocks at the end hold zeros only
    gate = jax.nn.silu(jnp.einsum("qbd,qdf->qbf", x_QbD, layer["gate_EDF"][expert_Q]))
    up = jnp.einsum("qbd,qdf->qbf", x_QbD, layer["up_EDF"][expert_Q])
    y_QbD = jnp.einsum("qbf,qfd->qbd", gate * up, layer["down_EFD"][expert_Q])
    place_TK = jnp.zeros((R,), jnp.int32).at[order_R].set(place_R).reshape(T, K)
    y_TKD = y_QbD.reshape(-1, D)[place_TK]
    return jnp.einsum("tkd,tk->td", y_TKD, weight_TK)


def _block_rows(rows: int, experts: int) -> int:
    """A power of two of about a quarter of an expert's mean load, between 8 and 128 rows."""
    block = _MIN_BLOCK
    while block < 128 and block * 4 * experts < rows:
        block *= 2
    return block


def balancing_loss(stats: list[RouterStats], mask_T: jax.Array, shape: PolicyShape) -> jax.Array:
    """E * sum_k,e f_ke p_e over all layers' real tokens; 1 * K when perfectly balanced.

    f_ke is the share of tokens whose k-th choice is e, p_e the mean router probability: the loss
    of Switch Transformer (Fedus et al. 2021, Eq 4-6) as transformers computes it for Qwen3-MoE.
    """
    mask_LT = jnp.tile(mask_T.astype(jnp.float32), len(stats))
    total = jnp.maximum(mask_LT.sum(), 1.0)
    prob_E = jnp.concatenate([s.prob_TE for s in stats]) * mask_LT[:, None]
    expert_TK = jnp.concatenate([s.expert_TK for s in stats])
    chosen_TKE = jax.nn.one_hot(expert_TK, shape.num_experts) * mask_LT[:, None, None]
    fraction_KE = chosen_TKE.sum(axis=0) / total
    return shape.num_experts * (fraction_KE * (prob_E.sum(axis=0) / total)[None, :]).sum()

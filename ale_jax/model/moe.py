"""Mixture of experts: a top-k router, experts on one device or across the mesh, and the balancing
loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from ale_jax.config.model import PolicyShape
from ale_jax.model.capacity_dispatch import (
    Weights,
    all_experts,
    are_few,
    capacity_dispatch,
    weighted_sum,
)
from ale_jax.model.compute import weight
from ale_jax.model.expert_parallel import AXIS, exchanged, gathered, own_share
from ale_jax.model.params import Params
from ale_jax.model.sharding import row_axes, sequence_axis


class RouterStats(NamedTuple):
    """Per token: softmax over the experts [T,E], and the K chosen experts [T,K]."""

    prob_TE: jax.Array
    expert_TK: jax.Array


def route(
    router_DE: jax.Array, x_TD: jax.Array, shape: PolicyShape, replay_TK: jax.Array | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns router probabilities [T,E], the K largest as weights [T,K], and their experts [T,K].

    replay_TK: experts to use instead, weighted by the router's own probabilities of them; -1 leaves
    the choice to the router. Gradients flow through the weights either way.
    """
    # By default, accelerators round the inputs of a product.
    score_TE = jnp.matmul(x_TD, router_DE, precision="highest", preferred_element_type=jnp.float32)
    prob_TE = jax.nn.softmax(score_TE, axis=-1)
    weight_TK, expert_TK = jax.lax.top_k(prob_TE, shape.experts_per_token)
    if replay_TK is not None:
        expert_TK = jnp.where(replay_TK < 0, expert_TK, replay_TK)
        weight_TK = jnp.take_along_axis(prob_TE, expert_TK, axis=1)
    if shape.norm_topk_prob:
        weight_TK = weight_TK / weight_TK.sum(axis=-1, keepdims=True)
    return prob_TE, weight_TK.astype(x_TD.dtype), expert_TK


def moe(
    layer: Params, x_BTD: jax.Array, shape: PolicyShape, replay_BTK: jax.Array | None = None
) -> tuple[jax.Array, RouterStats]:
    """Computes the sum over each token's K experts of weight * SwiGLU_expert(x). No token is ever
    dropped.

    Under a mesh (`jax.set_mesh`) each device routes its own tokens, and experts on other devices
    are reached by an all-to-all. replay_BTK: see `route`.
    """
    mesh = jax.sharding.get_abstract_mesh()
    gate_EDF, up_EDF, down_EFD = (
        weight(layer, name, x_BTD.dtype) for name in ("gate_EDF", "up_EDF", "down_EFD")
    )
    weights = gate_EDF, up_EDF, down_EFD
    if mesh.empty or mesh.size == 1:
        out_BTD, *stats = _on_one_device(layer["router_DE"], weights, x_BTD, replay_BTK, shape)
    else:
        out_BTD, *stats = _on_mesh(layer["router_DE"], weights, x_BTD, replay_BTK, shape, mesh)
    return out_BTD, RouterStats(*(each.reshape(-1, each.shape[-1]) for each in stats))


Outcome = tuple[jax.Array, jax.Array, jax.Array]  # [B,T,D], prob [B,T,E], expert [B,T,K]


def _on_one_device(
    router_DE: jax.Array,
    weights: Weights,
    x_BTD: jax.Array,
    replay_BTK: jax.Array | None,
    shape: PolicyShape,
) -> Outcome:
    def compute(x_TD, weight_TK, expert_TK):
        if are_few(*expert_TK.shape, shape.num_experts):
            return all_experts(weights, x_TD, weight_TK, expert_TK)
        return weighted_sum(capacity_dispatch(weights, x_TD, expert_TK), weight_TK)

    return _routed(router_DE, x_BTD, replay_BTK, shape, compute)


def _on_mesh(
    router_DE: jax.Array,
    weights: Weights,
    x_BTD: jax.Array,
    replay_BTK: jax.Array | None,
    shape: PolicyShape,
    mesh: jax.sharding.AbstractMesh,
) -> Outcome:
    rows, devices = row_axes(x_BTD.shape[0], mesh), mesh.shape[AXIS]
    tokens = PartitionSpec(rows, sequence_axis(x_BTD.shape[1], mesh))

    def share(router_DE, weights, x_BTD, replay_BTK):
        def compute(x_TD, weight_TK, expert_TK):
            (T, K), held = expert_TK.shape, weights[0].shape[0]
            if AXIS in rows and are_few(T * devices, K, held):
                return jax.lax.psum(gathered(weights, x_TD, weight_TK, expert_TK), "tensor")
            if AXIS in rows:
                out_TKD = exchanged(weights, x_TD, expert_TK)
                return jax.lax.psum(weighted_sum(out_TKD, weight_TK), "tensor")
            # Every device of the axis has these tokens, so none has to be sent.
            out_TD = own_share(weights, x_TD, weight_TK, expert_TK)
            return jax.lax.psum(out_TD, ("tensor", AXIS))

        return _routed(router_DE, x_BTD, replay_BTK, shape, compute)

    up, down = PartitionSpec(AXIS, None, "tensor"), PartitionSpec(AXIS, "tensor", None)
    # check_vma=False: within loops JAX cannot tell whether a value is the same on several devices.
    return jax.shard_map(
        share,
        in_specs=(PartitionSpec(), (up, up, down), tokens, tokens),
        out_specs=(tokens, tokens, tokens),
        check_vma=False,
    )(router_DE, weights, x_BTD, replay_BTK)


def _routed(
    router_DE: jax.Array,
    x_BTD: jax.Array,
    replay_BTK: jax.Array | None,
    shape: PolicyShape,
    compute: Callable[[jax.Array, jax.Array, jax.Array], jax.Array],
) -> Outcome:
    """compute: (x_TD, weight_TK, expert_TK) -> the weighted sum of each token's experts [T,D]."""
    B, T, D = x_BTD.shape
    x_TD = x_BTD.reshape(B * T, D)
    replay_TK = None if replay_BTK is None else replay_BTK.reshape(B * T, -1)
    prob_TE, weight_TK, expert_TK = route(router_DE, x_TD, shape, replay_TK)
    out_TD = compute(x_TD, weight_TK, expert_TK)
    out_BTD, prob_BTE, expert_BTK = (
        each.reshape(B, T, -1) for each in (out_TD, prob_TE, expert_TK)
    )
    return out_BTD, prob_BTE, expert_BTK


class RouterSums(NamedTuple):
    """Sums over `tokens` real tokens, per layer: the number of tokens that have each expert as
    their k-th choice [L,K,E], the router's probabilities [L,E], and their entropies in nats [L].
    All float32."""

    chosen_LKE: jax.Array
    prob_LE: jax.Array
    entropy_L: jax.Array
    tokens: jax.Array


def router_sums(stats: list[RouterStats], mask_T: jax.Array, shape: PolicyShape) -> RouterSums:
    """Sums the routers' statistics over the real tokens of each layer. mask_T: which tokens are
    real."""
    mask_T = mask_T.astype(jnp.float32)

    def of_layer(layer: RouterStats) -> tuple[jax.Array, ...]:
        chosen_TKE = jax.nn.one_hot(layer.expert_TK, shape.num_experts) * mask_T[:, None, None]
        # entr(p) = -p log p, and 0 where a probability underflowed to 0.
        entropy_T = jax.scipy.special.entr(layer.prob_TE).sum(axis=-1)
        prob_E = (layer.prob_TE * mask_T[:, None]).sum(axis=0)
        return chosen_TKE.sum(axis=0), prob_E, (entropy_T * mask_T).sum()

    chosen_LKE, prob_LE, entropy_L = (
        jnp.stack(each) for each in zip(*map(of_layer, stats), strict=True)
    )
    return RouterSums(chosen_LKE, prob_LE, entropy_L, mask_T.sum())


def balancing_loss(sums: RouterSums, shape: PolicyShape) -> jax.Array:
    """E * sum_k,e f_ke p_e over the real tokens of all layers; 1 * K when perfectly balanced.

    f_ke is the share of tokens whose k-th choice is e, and p_e the mean router probability. This is
    the loss of Switch Transformer (Fedus et al. 2021, Eq 4-6) as transformers computes it for
    Qwen3-MoE.
    """
    total = jnp.maximum(sums.tokens * len(sums.prob_LE), 1.0)
    fraction_KE, prob_E = sums.chosen_LKE.sum(axis=0) / total, sums.prob_LE.sum(axis=0) / total
    return shape.num_experts * (fraction_KE * prob_E[None, :]).sum()

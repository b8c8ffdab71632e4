"""Mixture of experts: a top-k router, experts on one device or across the mesh, and the balancing
loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from ale_jax.config.architecture import Experts, PolicyShape
from ale_jax.model.capacity_dispatch import (
    Weights,
    all_are_faster,
    all_experts,
    are_few,
    capacity_dispatch,
    chosen_experts,
    leaves_out,
    weighted_sum,
)
from ale_jax.model.chosen_product import Stack
from ale_jax.model.compute import USES, Adapted, Quantised, linear, scaled
from ale_jax.model.expert_parallel import AXIS, exchanged, gathered, own_share
from ale_jax.model.params import Params
from ale_jax.model.sharding import row_axes, sequence_axis


class RouterStats(NamedTuple):
    """Per token: softmax over the experts [T,E], and the K chosen experts [T,K]."""

    prob_TE: jax.Array
    expert_TK: jax.Array


def route(
    layer: Params, x_TD: jax.Array, kind: Experts, replay_TK: jax.Array | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns router probabilities [T,E], the weights of the chosen experts [T,K], and these
    experts [T,K].

    replay_TK: experts to use instead, weighted by the router's own probabilities of them; -1 leaves
    the choice to the router. Gradients flow through the weights either way.
    """
    # By default, accelerators round the inputs of a product.
    score_TE = jnp.matmul(
        x_TD, layer["router_DE"], precision="highest", preferred_element_type=jnp.float32
    )
    if kind.router_bias:
        score_TE = score_TE + layer["router_logit_bias_E"][None]
    if kind.score == "softmax":
        prob_TE = jax.nn.softmax(score_TE, axis=-1)
    else:
        prob_TE = jax.nn.sigmoid(score_TE)
    weight_TK, expert_TK = _choose(layer, prob_TE, kind)
    if replay_TK is not None:
        expert_TK = jnp.where(replay_TK < 0, expert_TK, replay_TK)
        weight_TK = jnp.take_along_axis(prob_TE, expert_TK, axis=1)
    if kind.renormalise:
        weight_TK = weight_TK / (weight_TK.sum(axis=-1, keepdims=True) + kind.eps)
    if kind.score == "sigmoid":  # the statistics are of shares
        prob_TE = prob_TE / prob_TE.sum(axis=-1, keepdims=True)
    return prob_TE, scaled(weight_TK, kind.scale).astype(x_TD.dtype), expert_TK


def routing(
    layer: Params, x_BTD: jax.Array, kind: Experts, replay_BTK: jax.Array | None = None
) -> RouterStats:
    """Returns the statistics that `moe` returns on one device, and computes no expert."""
    x_TD = x_BTD.reshape(-1, x_BTD.shape[-1])
    replay_TK = None if replay_BTK is None else replay_BTK.reshape(len(x_TD), -1)
    prob_TE, _, expert_TK = route(layer, x_TD, kind, replay_TK)
    return RouterStats(prob_TE, expert_TK)


def _choose(layer: Params, prob_TE: jax.Array, kind: Experts) -> tuple[jax.Array, jax.Array]:
    """The probabilities of each token's experts, and the experts, [T,K]."""
    if not kind.choice_bias and kind.groups == 1:
        return jax.lax.top_k(prob_TE, kind.per_token)
    wanted_TE = prob_TE + layer["router_bias_E"][None] if kind.choice_bias else prob_TE
    if kind.groups > 1:
        wanted_TE = _of_best_groups(wanted_TE, kind)
    _, expert_TK = jax.lax.top_k(jax.lax.stop_gradient(wanted_TE), kind.per_token)
    return jnp.take_along_axis(prob_TE, expert_TK, axis=1), expert_TK


def _of_best_groups(wanted_TE: jax.Array, kind: Experts) -> jax.Array:
    """The same, with -inf for the experts of all groups but the best (arXiv 2412.19437, section
    2.1.2)."""
    by_group = wanted_TE.reshape(len(wanted_TE), kind.groups, -1)
    merit = jax.lax.top_k(by_group, kind.merit)[0].sum(axis=-1)
    _, best = jax.lax.top_k(merit, kind.top_groups)
    is_best = jax.nn.one_hot(best, kind.groups).sum(axis=1) > 0
    return jnp.where(is_best[..., None], by_group, -jnp.inf).reshape(wanted_TE.shape)


def moe(
    layer: Params, x_BTD: jax.Array, kind: Experts, replay_BTK: jax.Array | None = None
) -> tuple[jax.Array, RouterStats]:
    """Computes the sum over each token's K experts of weight * expert(x), and the shared experts'
    part. No token is ever dropped.

    Under a mesh (`jax.set_mesh`) each device routes its own tokens, and experts on other devices
    are reached by an all-to-all. replay_BTK: see `route`.
    """
    mesh = jax.sharding.get_abstract_mesh()
    gate, up, down = (layer[name] for name in ("gate_EDF", "up_EDF", "down_EFD"))
    biases = (layer.get(name) for name in ("gate_bias_EF", "up_bias_EF", "down_bias_ED"))
    weights = Weights(gate, up, down, *biases)
    if USES in layer:
        size = *x_BTD.shape[:2], layer[USES].shape[-1]
        weights = weights._replace(uses=jnp.broadcast_to(layer[USES], size))
    router: Params = {name: each for name, each in layer.items() if name.startswith("router")}
    if on_one_device():
        out_BTD, *stats = _on_one_device(router, weights, x_BTD, replay_BTK, kind)
    else:
        out_BTD, *stats = _on_mesh(router, weights, x_BTD, replay_BTK, kind, mesh)
    if kind.shared:
        out_BTD = out_BTD + _shared(layer, x_BTD, kind)
    return out_BTD, RouterStats(*(each.reshape(-1, each.shape[-1]) for each in stats))


def on_one_device() -> bool:
    """Returns whether the current mesh has one device, or there is none."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.empty or mesh.size == 1


Outcome = tuple[jax.Array, jax.Array, jax.Array]  # [B,T,D], prob [B,T,E], expert [B,T,K]


def _on_one_device(
    router: Params,
    weights: Weights,
    x_BTD: jax.Array,
    replay_BTK: jax.Array | None,
    kind: Experts,
) -> Outcome:
    weights = weights.moved(_in_one_row)

    def compute(x_TD, weight_TK, expert_TK):
        if leaves_out(weights, *expert_TK.shape):
            return chosen_experts(weights, x_TD, weight_TK, expert_TK, kind.gate)
        ready = weights.loaded(x_TD.dtype)
        if all_are_faster(*expert_TK.shape, kind.num):
            return all_experts(ready, x_TD, weight_TK, expert_TK, kind.gate)
        return weighted_sum(capacity_dispatch(ready, x_TD, expert_TK, kind.gate), weight_TK)

    return _routed(router, x_BTD, replay_BTK, kind, compute)


def _on_mesh(
    router: Params,
    weights: Weights,
    x_BTD: jax.Array,
    replay_BTK: jax.Array | None,
    kind: Experts,
    mesh: jax.sharding.AbstractMesh,
) -> Outcome:
    rows, devices = row_axes(x_BTD.shape[0], mesh), mesh.shape[AXIS]
    tokens = PartitionSpec(rows, sequence_axis(x_BTD.shape[1], mesh))

    def share(router, weights, x_BTD, replay_BTK):
        weights, gate = _added_once(weights.moved(_in_one_row)), kind.gate

        def compute(x_TD, weight_TK, expert_TK):
            (T, K), held = expert_TK.shape, weights.gate.shape[0]
            if AXIS in rows and are_few(T * devices, K, held):
                return jax.lax.psum(gathered(weights, x_TD, weight_TK, expert_TK, gate), "tensor")
            if AXIS in rows:
                out_TKD = exchanged(weights.loaded(x_TD.dtype), x_TD, expert_TK, gate)
                return jax.lax.psum(weighted_sum(out_TKD, weight_TK), "tensor")
            # Every device of the axis has these tokens, so none has to be sent.
            out_TD = own_share(weights, x_TD, weight_TK, expert_TK, gate)
            return jax.lax.psum(out_TD, ("tensor", AXIS))

        return _routed(router, x_BTD, replay_BTK, kind, compute)

    up, down = (AXIS, None, "tensor"), (AXIS, "tensor", None)
    maps = map(_places, weights[:3], (up, up, down))
    inner, outer = PartitionSpec(AXIS, "tensor"), PartitionSpec(AXIS, None)
    rest: list[Any] = [inner, inner, outer, tokens]
    # check_vma=False: within loops JAX cannot tell whether a value is the same on several devices.
    return jax.shard_map(
        share,
        in_specs=(PartitionSpec(), Weights(*maps, *rest), tokens, tokens),
        out_specs=(tokens, tokens, tokens),
        check_vma=False,
    )(router, weights, x_BTD, replay_BTK)


def _in_one_row(uses_BTr: jax.Array) -> jax.Array:
    """The same for the tokens of all rows, as `_routed` gives them to experts."""
    return uses_BTr.reshape(-1, uses_BTr.shape[-1])


def _places(weight: Stack, axes: tuple[str | None, ...]) -> Any:
    """The sharding of a stack of maps whose dims lie along these axes. Where the inputs are cut,
    each device has a part of a sum, with the adapter's as without."""
    stack, inner, outer = axes
    if isinstance(weight, Adapted):
        a, b = PartitionSpec(stack, inner, None), PartitionSpec(stack, None, outer)
        return Adapted(_places(weight.base, axes), a, b)
    if isinstance(weight, Quantised):  # a scale has size 1 along the inputs
        return Quantised(PartitionSpec(*axes), PartitionSpec(stack, None, outer))
    return PartitionSpec(*axes)


def _added_once(weights: Weights) -> Weights:
    """The same, with the last bias on one device of "tensor" alone: what they compute is summed."""
    if weights.down_bias is None:
        return weights
    is_first = jax.lax.axis_index("tensor") == 0
    return weights._replace(down_bias=jnp.where(is_first, weights.down_bias, 0))


def _routed(
    router: Params,
    x_BTD: jax.Array,
    replay_BTK: jax.Array | None,
    kind: Experts,
    compute: Callable[[jax.Array, jax.Array, jax.Array], jax.Array],
) -> Outcome:
    """compute: (x_TD, weight_TK, expert_TK) -> the weighted sum of each token's experts [T,D]."""
    B, T, D = x_BTD.shape
    x_TD = x_BTD.reshape(B * T, D)
    replay_TK = None if replay_BTK is None else replay_BTK.reshape(B * T, -1)
    prob_TE, weight_TK, expert_TK = route(router, x_TD, kind, replay_TK)
    out_TD = compute(x_TD, weight_TK, expert_TK)
    out_BTD, prob_BTE, expert_BTK = (
        each.reshape(B, T, -1) for each in (out_TD, prob_TE, expert_TK)
    )
    return out_BTD, prob_BTE, expert_BTK


def _shared(layer: Params, x_BTD: jax.Array, kind: Experts) -> jax.Array:
    """What the experts that every token goes to add, [B,T,D]."""
    gate_BTF, up_BTF = (linear(layer, f"shared_{name}_DF", x_BTD) for name in ("gate", "up"))
    out_BTD = linear(layer, "shared_down_FD", jax.nn.silu(gate_BTF) * up_BTF)
    if not kind.shared_gate:
        return out_BTD
    share_BT1 = jax.nn.sigmoid(linear(layer, "shared_share_D1", x_BTD))
    return share_BT1 * out_BTD


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

"""Dispatch of tokens to experts: all ways of computing it agree, and no token is ever dropped."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.learn.step import router_figures, router_metrics
from ale_jax.model.capacity_dispatch import (
    Weights,
    all_experts,
    capacity_dispatch,
    chosen_experts,
    weighted_sum,
)
from ale_jax.model.moe import RouterStats, balancing_loss, moe, route, router_sums
from ale_jax.model.params import init_params
from tests.model.shapes import CLAMPED, MOE, with_biases

LAYER = init_params(jax.random.key(0), MOE)["layers"][0]
WEIGHTS = Weights(LAYER["gate_EDF"], LAYER["up_EDF"], LAYER["down_EFD"])
TOKENS = 200
X_TD = jax.random.normal(jax.random.key(1), (TOKENS, MOE.width))


EXPERTS = MOE.layers[0].experts


def _routing(kind):
    if kind == "learned":
        return route(LAYER, X_TD, EXPERTS)[1:]
    weight_TK = jnp.tile(jnp.array([[0.7, 0.3]]), (TOKENS, 1))
    if kind == "all to one pair":
        return weight_TK, jnp.tile(jnp.array([[3, 5]]), (TOKENS, 1))
    if kind == "half of it nobody's":
        nobody = jnp.full((TOKENS,), MOE.num_experts)
        return weight_TK, jnp.stack([nobody, jnp.arange(TOKENS) % 8], axis=1)
    return weight_TK, jnp.stack([jnp.arange(TOKENS) % 8, (jnp.arange(TOKENS) + 1) % 8], axis=1)


def _equal_blocks(weights, x_TD, weight_TK, expert_TK, gate):
    return weighted_sum(capacity_dispatch(weights, x_TD, expert_TK, gate), weight_TK)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _graded(dispatch, gate, *args):
    def scalar(weights, x_TD, weight_TK, expert_TK):
        return jnp.sin(dispatch(weights, x_TD, weight_TK, expert_TK, gate)).sum()

    return jax.value_and_grad(scalar, argnums=(0, 1, 2))(*args)


@pytest.mark.parametrize("dispatch", [_equal_blocks, chosen_experts], ids=["blocks", "chosen"])
@pytest.mark.parametrize("gate", ["silu", CLAMPED], ids=["silu", "clamped"])
@pytest.mark.parametrize("kind", ["learned", "all to one pair", "half of it nobody's", "in turn"])
def test_all_ways_compute_what_all_experts_on_all_tokens_do(kind, gate, dispatch):
    weight_TK, expert_TK = _routing(kind)
    weights = WEIGHTS if gate == "silu" else with_biases(WEIGHTS)
    args = gate, weights, X_TD, weight_TK, expert_TK
    expected, found = (_graded(each, *args) for each in (all_experts, dispatch))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), expected, found)


def test_many_experts_multiply_little_more_than_the_rows_that_chose_them():
    """Where each expert has at most 16 rows, too, which once sent all tokens to all experts."""
    experts = 256
    kind = dataclasses.replace(EXPERTS, num=experts, per_token=4)
    size = experts, MOE.width, 64
    layer = {
        "router_DE": jnp.zeros((MOE.width, experts)),
        "gate_EDF": jnp.zeros(size),
        "up_EDF": jnp.zeros(size),
        "down_EFD": jnp.zeros((experts, 64, MOE.width)),
    }
    x_BTD = jnp.zeros((4, 256, MOE.width))
    compiled = jax.jit(lambda layer, x_BTD: moe(layer, x_BTD, kind)[0]).lower(layer, x_BTD)
    needed = 1024 * 4 * 3 * 2 * MOE.width * 64
    assert compiled.compile().cost_analysis()["flops"] < 4 * needed


@pytest.mark.parametrize(("tokens", "few"), [(1, True), (3, True), (4, False)])
def test_a_cpu_reads_only_the_experts_of_very_few_tokens(tokens, few):
    """Where others are read, they reach the output: 0 * nan is nan."""
    x_TD = jnp.tile(X_TD[:1], (tokens, 1))
    chosen = route(LAYER, x_TD, EXPERTS)[2][0]
    is_chosen_E = (jnp.arange(MOE.num_experts)[:, None] == chosen[None]).any(axis=1)
    names = "gate_EDF", "up_EDF", "down_EFD"
    poisoned = LAYER | {
        name: jnp.where(is_chosen_E[:, None, None], LAYER[name], jnp.nan) for name in names
    }
    out_BTD, _ = jax.jit(moe, static_argnums=2)(poisoned, x_TD[None], EXPERTS)
    assert jnp.isfinite(out_BTD).all() == few


def test_every_token_gets_its_own_experts_output():
    out_BTD, stats = jax.device_get(jax.jit(moe, static_argnums=2)(LAYER, X_TD[None], EXPERTS))
    (out_TD,) = out_BTD
    gate_EDF, up_EDF, down_EFD = map(np.asarray, WEIGHTS[:3])
    for t, x_D in zip((0, 77, TOKENS - 1), np.asarray(X_TD)[[0, 77, -1]], strict=True):
        weight_K = stats.prob_TE[t][stats.expert_TK[t]]
        alone_D = 0.0
        for weight, e in zip(weight_K / weight_K.sum(), stats.expert_TK[t], strict=True):
            gate_F = x_D @ gate_EDF[e]
            hidden_F = gate_F / (1 + np.exp(-gate_F)) * (x_D @ up_EDF[e])
            alone_D += weight * hidden_F @ down_EFD[e]
        np.testing.assert_allclose(out_TD[t], alone_D, atol=1e-5)


def test_the_router_is_float32_wherever_matrix_products_are_not():
    """GPUs and TPUs round the inputs of a product that does not ask for more; CPUs never do."""
    x_TD = X_TD.astype(jnp.bfloat16)

    def largest(router_DE):
        return route({"router_DE": router_DE}, x_TD, EXPERTS)[0].max()

    text = jax.jit(jax.value_and_grad(largest)).lower(LAYER["router_DE"]).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert len(products) == 2, "forward and backward"
    assert all("precision = [HIGHEST, HIGHEST]" in line for line in products)
    exact_TE = np.asarray(x_TD, np.float64) @ np.asarray(LAYER["router_DE"], np.float64)
    prob_TE = route(LAYER, x_TD, EXPERTS)[0]
    np.testing.assert_allclose(prob_TE, jax.nn.softmax(exact_TE, axis=-1), rtol=1e-5)


@jax.jit
def _replayed(replay_TK):
    """The layer's outputs, statistics and gradients when it is told which experts to take."""

    def total(layer, x_TD):
        out_BTD, stats = moe(
            layer, x_TD[None], EXPERTS, None if replay_TK is None else replay_TK[None]
        )
        return jnp.sin(out_BTD).sum(), (out_BTD[0], stats)

    return jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(LAYER, X_TD)


def test_to_replay_the_routers_own_choice_changes_nothing():
    expected = _replayed(None)
    _, (_, stats) = expected[0]
    for replay_TK in (stats.expert_TK, jnp.full_like(stats.expert_TK, -1)):
        found = _replayed(replay_TK)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), expected, found)


def test_other_experts_count_by_their_own_probabilities():
    """Against the sum written out, and its gradient by the router; the second half is free."""
    other_TK = jnp.stack([jnp.arange(TOKENS) % 8, (jnp.arange(TOKENS) + 3) % 8], axis=1)
    replay_TK = jnp.where(jnp.arange(TOKENS)[:, None] < TOKENS // 2, other_TK, -1)
    (_, (out_TD, stats)), (d_layer, _) = _replayed(replay_TK)
    own_TK = route(LAYER, X_TD, EXPERTS)[2]
    expert_TK = np.where(replay_TK < 0, own_TK, other_TK)
    assert (expert_TK != own_TK).any() and (expert_TK[TOKENS // 2 :] == own_TK[TOKENS // 2 :]).all()
    np.testing.assert_array_equal(stats.expert_TK, expert_TK)

    layer = {name: np.asarray(w, np.float64) for name, w in LAYER.items()}
    x_TD = np.asarray(X_TD, np.float64)
    gate_TEF = np.einsum("td,edf->tef", x_TD, layer["gate_EDF"])
    hidden_TEF = (
        gate_TEF / (1 + np.exp(-gate_TEF)) * np.einsum("td,edf->tef", x_TD, layer["up_EDF"])
    )
    y_TED = np.einsum("tef,efd->ted", hidden_TEF, layer["down_EFD"])
    taken_TE = np.zeros((TOKENS, 8))
    np.put_along_axis(taken_TE, expert_TK, 1.0, axis=1)

    def outputs(router_DE):
        score_TE = np.exp(x_TD @ router_DE) * taken_TE  # the others' share cancels in the ratio
        return np.einsum("te,ted->td", score_TE / score_TE.sum(axis=1, keepdims=True), y_TED)

    np.testing.assert_allclose(out_TD, outputs(layer["router_DE"]), atol=1e-5)
    step_DE = np.random.default_rng(0).normal(size=layer["router_DE"].shape)
    ahead, behind = (np.sin(outputs(layer["router_DE"] + h * step_DE)).sum() for h in (1e-5, -1e-5))
    slope = (np.asarray(d_layer["router_DE"]) * step_DE).sum()
    np.testing.assert_allclose(slope, (ahead - behind) / 2e-5, rtol=1e-3)


def test_the_weights_of_experts_are_their_probabilities_where_they_are_not_rescaled():
    kind = dataclasses.replace(EXPERTS, renormalise=False)
    prob_TE, weight_TK, expert_TK = route(LAYER, X_TD, kind)
    expected = np.take_along_axis(np.asarray(prob_TE), np.asarray(expert_TK), axis=1)
    np.testing.assert_array_equal(weight_TK, expected)
    assert weight_TK.sum(axis=-1).max() < 0.99


T, E, K = 64, MOE.num_experts, MOE.experts_per_token
EVEN = RouterStats(
    jnp.full((T, E), 1 / E), jnp.stack([jnp.arange(T) % E, (jnp.arange(T) + 1) % E], axis=1)
)
CROWDED = RouterStats(
    jax.nn.one_hot(jnp.zeros((T,), int), E), jnp.tile(jnp.array([[0, 1]]), (T, 1))
)
ALL_T, HALF_T = jnp.ones((T,), bool), jnp.arange(T) < T // 2
# Padding, the second half, has no say.
MIXED = RouterStats(*(jnp.where(HALF_T[:, None], a, b) for a, b in zip(EVEN, CROWDED, strict=True)))


def test_the_balancing_loss_is_k_when_balanced_and_grows_when_not():
    for stats, mask_T, loss in ((EVEN, ALL_T, K), (CROWDED, ALL_T, E), (MIXED, HALF_T, K)):
        found = balancing_loss(router_sums([stats], mask_T, MOE), MOE)
        np.testing.assert_allclose(found, loss, rtol=1e-6)


@pytest.mark.heavy
def test_the_figures_show_which_layer_collapsed():
    """Two microbatches; the second layer's tokens all go to experts 0 and 1 of eight."""
    parts = [
        router_metrics(router_sums([EVEN, CROWDED], mask_T, MOE)) for mask_T in (HALF_T, ALL_T)
    ]
    assert router_figures(jax.tree.map(lambda a, b: np.asarray(a + b), *parts)) == pytest.approx(
        {
            "router_load_max": E / K,
            "router_load_mean": (1 + E / K) / 2,
            "router_unused": (E - K) / (2 * E),
            "router_entropy": 0.5,
        }
    )
    alone = router_metrics(router_sums([MIXED], HALF_T, MOE))
    assert router_figures(alone)["router_load_max"] == pytest.approx(1)
    assert router_figures({"tokens": np.float32(3)}) == {}

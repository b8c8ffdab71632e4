"""Dispatch of tokens to experts: all ways of computing it agree, and no token is ever dropped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.learn.router import router_figures, router_metrics
from ale_jax.model.equal_blocks import equal_blocks
from ale_jax.model.experts import all_experts
from ale_jax.model.moe import RouterStats, balancing_loss, moe, route, router_sums
from ale_jax.model.params import init_params
from tests.model.shapes import MOE

LAYER = init_params(jax.random.key(0), MOE)["layers"][0]
WEIGHTS = LAYER["gate_EDF"], LAYER["up_EDF"], LAYER["down_EFD"]
TOKENS = 200
X_TD = jax.random.normal(jax.random.key(1), (TOKENS, MOE.width))


def _routing(kind):
    if kind == "learned":
        return route(LAYER["router_DE"], X_TD, MOE)[1:]
    weight_TK = jnp.tile(jnp.array([[0.7, 0.3]]), (TOKENS, 1))
    if kind == "all to one pair":
        return weight_TK, jnp.tile(jnp.array([[3, 5]]), (TOKENS, 1))
    if kind == "half of it nobody's":
        nobody = jnp.full((TOKENS,), MOE.num_experts)
        return weight_TK, jnp.stack([nobody, jnp.arange(TOKENS) % 8], axis=1)
    return weight_TK, jnp.stack([jnp.arange(TOKENS) % 8, (jnp.arange(TOKENS) + 1) % 8], axis=1)


@pytest.mark.parametrize("kind", ["learned", "all to one pair", "half of it nobody's", "in turn"])
def test_equal_blocks_compute_what_all_experts_on_all_tokens_do(kind):
    weight_TK, expert_TK = _routing(kind)

    def summed(weights, x_TD, weight_TK, expert_TK):
        return jnp.einsum("tkd,tk->td", equal_blocks(weights, x_TD, expert_TK), weight_TK)

    def total(dispatch):
        def scalar(weights, x_TD, weight_TK):
            return jnp.sin(dispatch(weights, x_TD, weight_TK, expert_TK)).sum()

        return jax.jit(jax.value_and_grad(scalar, argnums=(0, 1, 2)))(WEIGHTS, X_TD, weight_TK)

    expected, found = total(all_experts), total(summed)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), expected, found)


def test_every_token_gets_its_own_experts_output():
    out_BTD, stats = moe(LAYER, X_TD[None], MOE)
    (out_TD,) = out_BTD
    for t in (0, 77, TOKENS - 1):
        weight_K = stats.prob_TE[t][stats.expert_TK[t]]
        weight_K = weight_K / weight_K.sum()
        alone_D = 0.0
        for weight, e in zip(weight_K, stats.expert_TK[t], strict=True):
            gate_F = jax.nn.silu(X_TD[t] @ LAYER["gate_EDF"][e])
            alone_D += weight * (gate_F * (X_TD[t] @ LAYER["up_EDF"][e])) @ LAYER["down_EFD"][e]
        np.testing.assert_allclose(out_TD[t], alone_D, atol=1e-5)


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

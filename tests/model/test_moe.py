"""Dispatch of tokens to experts: all ways of computing it agree, and no token is ever dropped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.model.equal_blocks import equal_blocks
from ale_jax.model.experts import all_experts
from ale_jax.model.moe import RouterStats, balancing_loss, moe, route
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


def test_the_balancing_loss_is_k_when_balanced_and_grows_when_not():
    T, E, K = 64, MOE.num_experts, MOE.experts_per_token
    even = RouterStats(
        jnp.full((T, E), 1 / E), jnp.stack([jnp.arange(T) % E, (jnp.arange(T) + 1) % E], axis=1)
    )
    mask_T = jnp.ones((T,), bool)
    np.testing.assert_allclose(balancing_loss([even], mask_T, MOE), K, rtol=1e-6)
    one_expert = jax.nn.one_hot(jnp.zeros((T,), int), E)
    crowded = RouterStats(one_expert, jnp.tile(jnp.array([[0, 1]]), (T, 1)))
    np.testing.assert_allclose(balancing_loss([crowded], mask_T, MOE), E, rtol=1e-6)
    # Padding has no say.
    half_T = jnp.arange(T) < T // 2
    mixed = RouterStats(
        jnp.where(half_T[:, None], even.prob_TE, crowded.prob_TE),
        jnp.where(half_T[:, None], even.expert_TK, crowded.expert_TK),
    )
    np.testing.assert_allclose(balancing_loss([mixed], half_T, MOE), K, rtol=1e-6)

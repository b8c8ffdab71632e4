"""The entropy bonus has the gradient that it should, through scores that are computed in blocks.

That no array of all tokens and the vocabulary is made for it: tests/learn/test_step_program.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.algo.policy_loss import policy_loss
from ale_jax.config.algo import MismatchHypers
from ale_jax.config.loss import LossHypers
from ale_jax.model.params import init_params
from ale_jax.model.policy import SCORE_BLOCK, logits, score_tokens
from tests.algo.batches import make_batch
from tests.model.shapes import DENSE, changed

pytestmark = pytest.mark.heavy

WIDTH = 2 * SCORE_BLOCK // 3  # two rows fill more than one block
SHAPE = changed(DENSE, tie_embeddings=False)


def test_the_gradient_of_the_entropy_is_that_of_the_whole_distribution():
    """d H / d z_v = -p_v (log p_v + H), of the distribution that each counted token came from."""
    rng = np.random.default_rng(0)
    params = init_params(jax.random.key(0), SHAPE)
    hidden_BTD = jnp.asarray(rng.normal(size=(2, WIDTH, SHAPE.width)), jnp.float32)
    tokens_BT = jnp.asarray(rng.integers(0, SHAPE.vocab_size, (2, WIDTH)))
    position_BT = jnp.tile(jnp.arange(WIDTH), (2, 1))
    chunk_BT = jnp.where(position_BT % 3 == 1, 0, -1)
    factor_BT = jnp.asarray(rng.uniform(size=(2, WIDTH)), jnp.float32)
    batch = make_batch(chunk_BT, np.ones((2, WIDTH)), entropy_BT=factor_BT)
    hp = LossHypers("vanilla", entropy_weight=0.5)  # advantages are 0

    def loss(hidden_BTD):
        scores = score_tokens(params, tokens_BT, hidden_BTD, position_BT)
        return policy_loss(scores.logp_BT, scores.entropy_BT, batch, 7.0, 1, hp, MismatchHypers())[
            0
        ]

    logit_BTV = np.asarray(logits(params, hidden_BTD), np.float64)
    logp_BTV = logit_BTV - np.log(np.exp(logit_BTV).sum(-1, keepdims=True))
    entropy_BT1 = -(np.exp(logp_BTV) * logp_BTV).sum(-1, keepdims=True)
    # Token t + 1 was drawn from the distribution at t.
    weight_BT = np.where(chunk_BT >= 0, factor_BT, 0.0)[:, 1:] * -0.5 / 7.0
    slope_BTV = -np.exp(logp_BTV) * (logp_BTV + entropy_BT1)
    expected = np.zeros(hidden_BTD.shape)
    head_VD = np.asarray(params["head_DV"], np.float64).T
    expected[:, :-1] = (weight_BT[..., None] * slope_BTV[:, :-1]) @ head_VD
    value, grad_BTD = jax.value_and_grad(loss)(hidden_BTD)
    np.testing.assert_allclose(value, (weight_BT * entropy_BT1[:, :-1, 0]).sum(), rtol=1e-4)
    np.testing.assert_allclose(grad_BTD, expected, rtol=1e-3, atol=1e-7)
    assert np.abs(expected).max() > 1e-5

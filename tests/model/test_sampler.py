"""The draw itself: its frequencies, and where its randomness comes from."""

import jax.numpy as jnp
import numpy as np

from ale_jax.model.sampler import SlotState, sample

S = 4000


def _state(position=0, temperature=1.0):
    return SlotState(
        token_S=jnp.zeros((S,), jnp.int32),
        position_S=jnp.full((S,), position, jnp.int32),
        budget_S=jnp.ones((S,), jnp.int32),
        key_S2=jnp.stack([jnp.full((S,), 3), jnp.arange(S)], axis=1).astype(jnp.uint32),
        temperature_S=jnp.full((S,), temperature),
        top_k_S=jnp.zeros((S,), jnp.int32),
        top_p_S=jnp.ones((S,)),
        goes_on_S=jnp.zeros((S,), bool),
    )


def test_draws_follow_the_distribution():
    logits_V = jnp.log(jnp.array([0.5, 0.25, 0.15, 0.1]))
    token_S, logp_mu_S, _ = sample(jnp.tile(logits_V[None, :], (S, 1)), _state())
    share_V = np.bincount(token_S, minlength=4) / S
    # Standard deviation of a share of 4000 draws: at most 0.008.
    np.testing.assert_allclose(share_V, [0.5, 0.25, 0.15, 0.1], atol=0.03)
    np.testing.assert_allclose(logp_mu_S, logits_V[token_S], atol=1e-6)


def test_temperature_sharpens():
    logits_V = jnp.log(jnp.array([0.6, 0.4]))
    token_S, logp_mu_S, logp_old_S = sample(
        jnp.tile(logits_V[None, :], (S, 1)), _state(temperature=0.5)
    )
    share = (np.asarray(token_S) == 0).mean()
    assert abs(share - 0.36 / 0.52) < 0.03
    first = int(np.argmax(np.asarray(token_S) == 0))
    np.testing.assert_allclose(np.exp(logp_mu_S[first]), 0.36 / 0.52, rtol=1e-5)
    np.testing.assert_allclose(np.exp(logp_old_S[first]), 0.6, rtol=1e-5)


def test_each_position_has_its_own_draw():
    logits_SV = jnp.zeros((S, 2))
    first, _, _ = sample(logits_SV, _state(position=1))
    again, _, _ = sample(logits_SV, _state(position=1))
    other, _, _ = sample(logits_SV, _state(position=2))
    np.testing.assert_array_equal(first, again)
    assert 0.45 < (np.asarray(first) == np.asarray(other)).mean() < 0.55

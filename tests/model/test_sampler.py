"""The draw itself: its frequencies, and where its randomness comes from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.model.guides import no_guides
from ale_jax.model.sampler import SlotState, _pick, sample

S = 4000


def _state(position=0, temperature=1.0, min_p=0.0, top_p=1.0, top_k=0):
    return SlotState(
        token_S=jnp.zeros((S,), jnp.int32),
        position_S=jnp.full((S,), position, jnp.int32),
        budget_S=jnp.ones((S,), jnp.int32),
        key_S2=jnp.stack([jnp.full((S,), 3), jnp.arange(S)], axis=1).astype(jnp.uint32),
        temperature_S=jnp.full((S,), temperature),
        top_k_S=jnp.full((S,), top_k, jnp.int32),
        top_p_S=jnp.full((S,), top_p),
        min_p_S=jnp.full((S,), min_p),
        continues_S=jnp.zeros((S,), bool),
    )


@pytest.mark.heavy
def test_draws_follow_the_distribution():
    logits_V = jnp.log(jnp.array([0.5, 0.25, 0.15, 0.1]))
    sampled = sample(jnp.tile(logits_V[None, :], (S, 1)), _state())
    share_V = np.bincount(sampled.token_S, minlength=4) / S
    # Standard deviation of a share of 4000 draws: at most 0.008.
    np.testing.assert_allclose(share_V, [0.5, 0.25, 0.15, 0.1], atol=0.03)
    np.testing.assert_allclose(sampled.logp_mu_S, logits_V[sampled.token_S], atol=1e-6)


def test_a_place_without_mass_is_never_picked():
    """Over hundreds of entries XLA sums in tiles, and the sum may change where nothing is added."""
    rng = np.random.default_rng(1)
    for _ in range(13):
        mass = rng.exponential(size=390).astype(np.float32) * (rng.random(390) < 0.1)
        mass = (mass / mass.sum()).astype(np.float32)
    uniform = np.append(np.float32(0.9292418956756592), rng.random(2000, np.float32))
    # One entry after another, which gives a sum that never falls.
    up_to = np.cumsum(mass)
    exact = np.searchsorted(up_to, uniform * up_to[-1], side="right")
    picked = np.asarray(jax.vmap(_pick, (None, 0))(jnp.asarray(mass), jnp.asarray(uniform)))
    assert (mass[picked] > 0).all()
    assert (picked == exact).mean() > 0.99
    assert _pick(jnp.zeros(390).at[7].set(1.0), np.nextafter(np.float32(1), np.float32(0))) == 7


def test_temperature_sharpens():
    logits_V = jnp.log(jnp.array([0.6, 0.4]))
    sampled = sample(jnp.tile(logits_V[None, :], (S, 1)), _state(temperature=0.5))
    share = (np.asarray(sampled.token_S) == 0).mean()
    assert abs(share - 0.36 / 0.52) < 0.03
    first = int(np.argmax(np.asarray(sampled.token_S) == 0))
    np.testing.assert_allclose(np.exp(sampled.logp_mu_S[first]), 0.36 / 0.52, rtol=1e-5)
    np.testing.assert_allclose(np.exp(sampled.logp_plain_S[first]), 0.6, rtol=1e-5)


def test_each_position_has_its_own_draw():
    logits_SV = jnp.zeros((S, 2))
    first, again, other = (sample(logits_SV, _state(position=n)).token_S for n in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert 0.45 < (np.asarray(first) == np.asarray(other)).mean() < 0.55


@pytest.mark.parametrize("cut", [{"top_k": 2}, {"top_p": 0.7}], ids=str)
def test_top_k_alone_and_top_p_alone_leave_the_most_probable(cut):
    logits_V = jnp.log(jnp.array([0.15, 0.5, 0.25, 0.1]))
    sampled = sample(jnp.tile(logits_V[None, :], (S, 1)), _state(**cut))
    assert set(np.asarray(sampled.token_S)) == {1, 2}
    first = int(np.argmax(np.asarray(sampled.token_S) == 2))
    np.testing.assert_allclose(np.exp(sampled.logp_mu_S[first]), 0.25 / 0.75, rtol=1e-5)


def test_min_p_leaves_what_is_nearly_as_probable_as_the_most_probable():
    logits_V = jnp.log(jnp.array([0.15, 0.5, 0.25, 0.1]))
    sampled = sample(jnp.tile(logits_V[None, :], (S, 1)), _state(min_p=0.4))
    assert set(np.asarray(sampled.token_S)) == {1, 2}
    first = int(np.argmax(np.asarray(sampled.token_S) == 2))
    np.testing.assert_allclose(np.exp(sampled.logp_mu_S[first]), 0.25 / 0.75, rtol=1e-5)
    np.testing.assert_allclose(np.exp(sampled.logp_plain_S[first]), 0.25, rtol=1e-5)


def test_a_top_p_too_small_for_float32_leaves_the_most_probable():
    logits_V = jnp.log(jnp.array([0.15, 0.5, 0.25, 0.1]))
    sampled = sample(jnp.tile(logits_V[None, :], (S, 1)), _state(top_p=1e-40))
    assert set(np.asarray(sampled.token_S)) == {1}
    np.testing.assert_array_equal(sampled.logp_mu_S, 0.0)


@pytest.mark.parametrize("temperature", [1e-37, 1e-29])
def test_under_a_tiny_temperature_the_most_probable_token_is_taken(temperature):
    sampled = sample(
        jnp.tile(jnp.array([[1.0, 60.0, 59.0]]), (S, 1)), _state(temperature=temperature)
    )
    assert set(np.asarray(sampled.token_S)) == {1}
    np.testing.assert_array_equal(sampled.logp_mu_S > -1.0, True)


def _guides(**fields):
    return no_guides(S, 40, 2).replace(**fields)


LOGITS_V = jnp.log(jnp.arange(1.0, 41.0) / 820)
LOGITS_SV = jnp.tile(LOGITS_V[None, :], (S, 1))
ODD_S = jnp.arange(S) % 2 == 1


def test_only_allowed_tokens_are_drawn_with_their_share_of_the_probability():
    allowed_w = np.array([1 << 31 | 1 << 5, 1 << 7], np.uint32).view(np.int32)  # 5, 31, 39
    allowed_nSw = jnp.zeros((2, S, 2), jnp.int32).at[1].set(allowed_w)
    guides = _guides(is_masked_S=ODD_S, allowed_nSw=allowed_nSw)
    sampled, free = sample(LOGITS_SV, _state(), guides, 1), sample(LOGITS_SV, _state())
    odd = np.asarray(ODD_S)
    token_S = np.asarray(sampled.token_S)
    assert set(token_S[odd]) == {5, 31, 39}
    logp_V = np.log(np.array([6, 32, 40]) / 78)
    expected = dict(zip((5, 31, 39), logp_V, strict=True))
    for logp_S in (sampled.logp_mu_S, sampled.logp_plain_S):
        np.testing.assert_allclose(
            logp_S[odd], [expected[token] for token in token_S[odd]], atol=1e-5
        )
    for name in ("token_S", "logp_mu_S", "logp_plain_S"):  # the others' numbers are the same
        np.testing.assert_array_equal(getattr(sampled, name)[~odd], getattr(free, name)[~odd])


def test_a_push_changes_what_is_drawn_and_not_the_plain_log_probability():
    bias_SV = jnp.zeros((S, 40)).at[:, 3].set(50.0).at[:, 39].set(-jnp.inf)
    sampled = sample(LOGITS_SV, _state(), _guides(is_biased_S=ODD_S, bias_SV=bias_SV))
    odd = np.asarray(ODD_S)
    assert set(np.asarray(sampled.token_S)[odd]) == {3}
    np.testing.assert_allclose(sampled.logp_mu_S[odd], 0.0, atol=1e-6)
    np.testing.assert_allclose(sampled.logp_plain_S[odd], np.log(4 / 820), atol=1e-5)
    assert len(set(np.asarray(sampled.token_S)[~odd])) == 40


@pytest.mark.heavy
def test_the_most_probable_tokens_are_shown_to_who_wants_them():
    sampled = sample(LOGITS_SV, _state(), _guides(wants_top_S=ODD_S))
    np.testing.assert_array_equal(sampled.top_id_Sk[1], np.arange(39, 19, -1))
    np.testing.assert_allclose(sampled.top_logp_Sk[1], LOGITS_V[39:19:-1], atol=1e-5)

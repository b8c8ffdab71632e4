"""Scores of tokens that were sampled under masks: those of the distribution that they came from."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.config.hardware import MeshShape
from ale_jax.model.guides import SamplingMasks, packed, unpack
from ale_jax.model.params import init_params
from ale_jax.model.policy import SCORE_BLOCK, Asked, logits, score_tokens
from ale_jax.model.sharding import batch_sharding, make_mesh
from ale_jax.records import FORCED, FREE
from tests.model.shapes import DENSE, changed

B, T, V = 2, 2 * SCORE_BLOCK // 3, 90  # more than one block of tokens; a part of a word
NUM_MASKS = 5
SHAPE = changed(DENSE, vocab_size=V)
PARAMS = init_params(jax.random.key(0), SHAPE)
POSITION_BT = jnp.tile(jnp.arange(T), (B, 1))


def pack_bits(allowed):
    """Bool [..., V] as bit fields [..., w]."""
    padded = np.pad(allowed, [(0, 0)] * (allowed.ndim - 1) + [(0, -allowed.shape[-1] % 32)])
    return np.packbits(padded, axis=-1, bitorder="little").view(np.int32)


@dataclasses.dataclass
class Drawn:
    """Tokens, the sets that they were drawn from, bool [B,T,V], and at which temperatures."""

    hidden_BTD: np.ndarray
    tokens_BT: np.ndarray
    masks: SamplingMasks
    allowed_BTV: np.ndarray
    temperature_BT: np.ndarray

    @property
    def mask_id_BT(self):
        return np.asarray(self.masks.mask_id_BT)


@pytest.fixture(scope="module")
def drawn():
    rng = np.random.default_rng(0)
    tokens_BT = rng.integers(0, V, (B, T))
    mask_id_BT = rng.integers(FORCED, NUM_MASKS, (B, T)).astype(np.int16)
    allowed_BIV = rng.random((B, NUM_MASKS, V)) < 0.3
    allowed_BIV[:, 4] = np.arange(V) % 2 == 0
    for b, t in np.argwhere(mask_id_BT >= 0):
        if mask_id_BT[b, t] == 4:
            tokens_BT[b, t] &= ~1  # an even one
        allowed_BIV[b, mask_id_BT[b, t], tokens_BT[b, t]] = True
    allowed_BTV = np.stack([allowed_BIV[b, np.maximum(mask_id_BT[b], 0)] for b in range(B)])
    allowed_BTV[mask_id_BT == FREE] = True
    allowed_BTV[mask_id_BT == FORCED] = False
    np.put_along_axis(allowed_BTV, tokens_BT[..., None], True, axis=-1)
    masks = SamplingMasks(jnp.asarray(mask_id_BT), jnp.asarray(pack_bits(allowed_BIV)))
    hidden_BTD = rng.normal(size=(B, T, SHAPE.width)).astype(np.float32)
    temperature_BT = rng.choice(np.float32([0.5, 1.0, 1.3]), (B, T))
    return Drawn(hidden_BTD, tokens_BT, masks, allowed_BTV, temperature_BT)


def distribution(drawn):
    """log p [B,T-1,V] of what each token but the first was drawn from, in double precision."""
    logit_BTV = np.asarray(logits(PARAMS, drawn.hidden_BTD), np.float64)[:, :-1]
    logit_BTV /= drawn.temperature_BT[:, 1:, None]
    logit_BTV = np.where(drawn.allowed_BTV[:, 1:], logit_BTV, -np.inf)
    return logit_BTV - np.log(np.exp(logit_BTV).sum(-1, keepdims=True))


def score(drawn, hidden_BTD=None, **asked):
    """As they were drawn."""
    hidden_BTD = drawn.hidden_BTD if hidden_BTD is None else hidden_BTD
    how = Asked(drawn.masks, jnp.asarray(drawn.temperature_BT), **asked)
    return score_tokens(PARAMS, drawn.tokens_BT, hidden_BTD, POSITION_BT, how)


def of_tokens(x_BTV, drawn):
    return np.take_along_axis(x_BTV, drawn.tokens_BT[:, 1:, None], axis=-1)[..., 0]


def test_bit_fields_are_unpacked():
    words = np.array([[1 << 31 | 1 << 5, 1 << 7], [0, -1 & 0xFFFFFFFF]], np.uint32).view(np.int32)
    for size in (33, 40, 64, 70):
        allowed = np.asarray(unpack(jnp.asarray(words), size))
        assert allowed.shape == (2, size)
        assert np.flatnonzero(allowed[0]).tolist() == [v for v in (5, 31, 39) if v < size]
        assert np.flatnonzero(allowed[1]).tolist() == list(range(32, min(size, 64)))
        np.testing.assert_array_equal(packed(jnp.asarray(allowed)), pack_bits(allowed))


def test_scores_are_those_of_the_tokens_that_were_allowed(drawn):
    found = score(drawn)
    logp_BTV = distribution(drawn)
    p_BTV = np.exp(logp_BTV)
    entropy_BT = -(p_BTV * np.where(p_BTV > 0, logp_BTV, 0)).sum(-1)
    np.testing.assert_allclose(found.logp_BT[:, 1:], of_tokens(logp_BTV, drawn), atol=1e-5)
    np.testing.assert_allclose(found.entropy_BT[:, 1:], entropy_BT, atol=1e-5)
    best_BT = of_tokens(logp_BTV, drawn) >= logp_BTV.max(-1)
    np.testing.assert_array_equal(found.best_BT[:, 1:], best_BT)
    assert set(np.unique(drawn.mask_id_BT)) == set(range(FORCED, NUM_MASKS))


def test_a_forced_token_is_certain_and_a_free_one_is_as_without_masks(drawn):
    of_all = PARAMS, drawn.tokens_BT, drawn.hidden_BTD, POSITION_BT
    found, plain = score_tokens(*of_all, Asked(drawn.masks)), score_tokens(*of_all)
    forced_BT, free_BT = drawn.mask_id_BT == FORCED, drawn.mask_id_BT == FREE
    for name in ("logp_BT", "entropy_BT", "best_BT"):
        x_BT, plain_BT = np.asarray(getattr(found, name)), np.asarray(getattr(plain, name))
        np.testing.assert_array_equal(x_BT[free_BT], plain_BT[free_BT])
        assert (x_BT[:, 1:] == (name == "best_BT"))[forced_BT[:, 1:]].all()
    assert (np.abs(found.logp_BT - plain.logp_BT)[drawn.mask_id_BT >= 0] > 0.1).mean() > 0.9


def test_the_gradient_is_that_of_the_tokens_that_were_allowed(drawn):
    """d log p / d z_v = 1[v] - p_v, and d H / d z_v = -p_v (log p_v + H)."""
    rng = np.random.default_rng(1)
    by_logp_BT, by_entropy_BT = rng.normal(size=(2, B, T))

    def total(hidden_BTD):
        scores = score(drawn, hidden_BTD)
        return (by_logp_BT * scores.logp_BT + by_entropy_BT * scores.entropy_BT).sum()

    logp_BTV = distribution(drawn)
    p_BTV = np.exp(logp_BTV)
    logp_BTV = np.where(p_BTV > 0, logp_BTV, 0)
    entropy_BT1 = -(p_BTV * logp_BTV).sum(-1, keepdims=True)
    is_token_BTV = np.arange(V)[None, None] == drawn.tokens_BT[:, 1:, None]
    slope_BTV = by_logp_BT[:, 1:, None] * (is_token_BTV - p_BTV)
    slope_BTV -= by_entropy_BT[:, 1:, None] * p_BTV * (logp_BTV + entropy_BT1)
    slope_BTV /= drawn.temperature_BT[:, 1:, None]
    expected_BTD = slope_BTV @ np.asarray(PARAMS["head_DV"], np.float64).T
    grad_BTD = np.asarray(jax.jit(jax.grad(total))(jnp.asarray(drawn.hidden_BTD)))
    np.testing.assert_allclose(grad_BTD[:, :-1], expected_BTD, atol=1e-5)
    forced_BT = drawn.mask_id_BT[:, 1:] == FORCED
    assert not grad_BTD[:, :-1][forced_BT].any(), "a certain token teaches nothing"


@pytest.mark.heavy
@pytest.mark.parametrize(
    "sizes", [{"data": 2, "tensor": 4}, {"data": 2, "tensor": 2, "context": 2}]
)
def test_a_mesh_does_not_change_the_scores(drawn, sizes):
    mesh = make_mesh(MeshShape(**sizes))
    alone = score(drawn, top=5)
    ids = np.asarray(alone.top_id_BTk)
    rows = drawn.tokens_BT, drawn.hidden_BTD, POSITION_BT, drawn.masks, drawn.temperature_BT, ids
    *rows, masks, temperature_BT, ids = jax.device_put(rows, batch_sharding(mesh))

    def both(tokens_BT, hidden_BTD, position_BT, *asked):
        score = partial(score_tokens, PARAMS, tokens_BT, hidden_BTD, position_BT)
        return score(Asked(*asked, top=5)), score(Asked(*asked, ids))

    with jax.set_mesh(mesh):
        told, asked = jax.jit(both)(*rows, masks, temperature_BT)
    for found in (told, asked):
        for x_BT, alone_BT in zip(found, alone, strict=True):
            np.testing.assert_allclose(x_BT, alone_BT, atol=1e-5)


def test_the_most_probable_tokens_are_told_and_those_that_are_named(drawn):
    logp_BTV = np.maximum(distribution(drawn), -1e30)
    order_BTV = np.argsort(-logp_BTV, axis=-1, kind="stable")
    found = score(drawn, top=3)
    best_BT3 = np.take_along_axis(logp_BTV, order_BTV[..., :3], axis=-1)
    is_possible = best_BT3 > -1e29
    told_BT3 = np.asarray(found.logp_top_BTk)[:, 1:]
    np.testing.assert_allclose(told_BT3[is_possible], best_BT3[is_possible], atol=1e-5)
    assert (told_BT3[~is_possible] < -1e29).all() and not is_possible.all()
    named = np.random.default_rng(3).integers(0, V, (B, T, 4)).astype(np.int32)
    asked = np.asarray(score(drawn, top_id_BTk=jnp.asarray(named)).logp_top_BTk)[:, 1:]
    expected = np.take_along_axis(logp_BTV, named[:, 1:], axis=-1)
    np.testing.assert_allclose(np.maximum(asked, -1e3), np.maximum(expected, -1e3), atol=1e-5)

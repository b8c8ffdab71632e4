"""How trajectories are packed must not change what is learned from them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.algo.grpo import GrpoHypers, grpo_loss
from ale_jax.algo.ipa import IpaHypers, ipa_loss
from ale_jax.algo.normaliser import count_normaliser
from ale_jax.data.packing import Sample, Shape, pack_all
from tests.data.make_trajectories import make_turn

VOCABULARY = 50
SHAPES = [Shape(8, 12, 4), Shape(1, 12, 3), Shape(2, 30, 9), Shape(1, 200, 50)]


def make_samples():
    rng = np.random.default_rng(0)
    samples = []
    for _ in range(7):
        turns = tuple(
            make_turn(rng.integers(0, 50, rng.integers(1, 3)), rng.integers(0, 50, 2))
            for _ in range(rng.integers(1, 4))
        )
        advantage_C = rng.normal(size=len(turns)).astype(np.float32)
        samples.append(Sample(turns, advantage_C, bool(rng.random() < 0.5)))
    return samples


def step(batches, loss, hp):
    """Loss and gradient of a whole step under a policy that has one logit per token id."""
    normaliser = count_normaliser(batches, hp.normaliser)

    def total(logit_V):
        logp_V = jax.nn.log_softmax(logit_V)
        return sum(
            loss(
                logp_V[b.tokens_BT] / 10,  # near pi_old of the fakes, so that both sides of 1 occur
                b.logp_old_BT, b.logp_mu_BT, jnp.asarray(b.chunk_BT),
                jnp.asarray(b.advantage_BC), jnp.asarray(b.positive_BC), normaliser, hp,
            )[0]
            for b in batches
        )  # fmt: skip

    return jax.value_and_grad(total)(jnp.linspace(-1.0, 1.0, VOCABULARY))


@pytest.mark.parametrize("kind", ["tokens", "chunks", "trajectories"])
@pytest.mark.parametrize(("loss", "Hypers"), [(ipa_loss, IpaHypers), (grpo_loss, GrpoHypers)])
def test_packing_changes_neither_loss_nor_gradient(loss, Hypers, kind):
    hp = Hypers(normaliser=kind)
    results = [step(pack_all(make_samples(), shape), loss, hp) for shape in SHAPES]
    assert abs(results[0][0]) > 1e-3
    for value, grad_V in results[1:]:
        np.testing.assert_allclose(value, results[0][0], rtol=1e-5)
        np.testing.assert_allclose(grad_V, results[0][1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_normalisers_count_the_whole_step(shape):
    samples = make_samples()
    batches = pack_all(samples, shape)
    turns = sum(len(s.turns) for s in samples)
    assert count_normaliser(batches, "trajectories") == 7
    assert count_normaliser(batches, "chunks") == turns
    assert count_normaliser(batches, "tokens") == 2 * turns


def test_an_empty_step_is_not_divided_by_zero():
    assert count_normaliser([], "tokens") == 1


def test_an_unknown_normaliser_is_refused():
    with pytest.raises(ValueError, match=r"rows.*tokens, chunks, trajectories"):
        count_normaliser([], "rows")

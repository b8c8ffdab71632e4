"""How trajectories are packed must not change what is learned from them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.algo.losses import count_loss_denominator
from ale_jax.algo.policy_loss import policy_loss
from ale_jax.config.algo import MismatchHypers
from ale_jax.config.learn import Shape
from ale_jax.config.loss import AGGREGATIONS, LossHypers
from ale_jax.data.packing import Sample, pack_all
from tests.algo.batches import EVERY_LOSS
from tests.data.make_trajectories import make_turn
from tests.rows import each_row

VOCABULARY = 50
SHAPES = [Shape(8, 12, 4), Shape(2, 12, 3), Shape(1, 200, 50)]
FILTER = MismatchHypers(filter_level="chunk", filter_high=1.2)


def make_samples():
    rng = np.random.default_rng(0)
    samples = []
    for _ in range(7):
        turns = tuple(
            make_turn(rng.integers(0, 50, rng.integers(1, 3)), rng.integers(0, 50, 2))
            for _ in range(rng.integers(1, 4))
        )
        given = int(rng.random() < 0.3 and len(turns) > 1)
        advantage_C = rng.normal(size=len(turns) - given).astype(np.float32)
        imitate_P = np.full(given, 0.5, np.float32)
        samples.append(Sample(turns, advantage_C, given, imitate_P=imitate_P))
    return samples


def step(batches, num_chunks, hp):
    """Loss and gradient of a whole step under a policy that has one logit per token id."""
    loss_denominator = count_loss_denominator(batches, hp.aggregation, hp.constant_tokens)

    def total(logit_V):
        logp_V = jax.nn.log_softmax(logit_V)
        loss = 0.0
        for batch in batches:
            arrays = {k: x for k, x in vars(batch).items() if x is not None}
            arrays["logp_prox_BT"] = arrays["logp_old_BT"] - 0.1
            # Near pi_old of the fakes, so that both sides of 1 occur.
            logp_BT = logp_V[batch.tokens_BT] / 10
            entropy_BT = jnp.zeros_like(logp_BT)
            loss += policy_loss(
                logp_BT, entropy_BT, arrays, loss_denominator, num_chunks, hp, FILTER
            )[0]
        return loss

    return jax.value_and_grad(total)(jnp.linspace(-1.0, 1.0, VOCABULARY))


@pytest.mark.heavy
@each_row(
    "name, level, aggregation, observation_weight",
    [
        ("topr", "chunk", "tokens", 0.0),
        ("ppo", "token", "chunks", 0.2),
        ("decoupled_ppo", "chunk", "chunk_means", 0.2),
        ("ppo", "sequence", "trajectories", 0.0),
        ("topr", "chunk", "trajectory_means", 0.2),
        ("decoupled_ppo", "token", "constant", 0.0),
    ],
)
def test_packing_changes_neither_loss_nor_gradient(name, level, aggregation, observation_weight):
    hp = dataclasses.replace(
        EVERY_LOSS[name],
        level=level,
        aggregation=aggregation,
        constant_tokens=20 if aggregation == "constant" else 0,
        observation_weight=observation_weight,
    )
    packed = [pack_all(make_samples(), shape) for shape in SHAPES]
    assert [len(batches) > 1 for batches in packed] == [False, True, False]
    results = [step(batches, s.chunks_per_pack, hp) for batches, s in zip(packed, SHAPES)]
    assert abs(results[0][0]) > 1e-4
    for value, grad_V in results[1:]:
        np.testing.assert_allclose(value, results[0][0], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(grad_V, results[0][1], rtol=1e-4, atol=1e-6)


@each_row("shape", SHAPES)
def test_normalisers_count_the_whole_step(shape):
    samples = make_samples()
    batches = pack_all(samples, shape)
    chunks = sum(s.num_chunks for s in samples)
    assert sum(s.num_prefix_turns for s in samples) > 0
    assert count_loss_denominator(batches, "trajectories") == 7
    assert count_loss_denominator(batches, "trajectory_means") == 7
    assert count_loss_denominator(batches, "constant", 100) == 700
    assert count_loss_denominator(batches, "chunks") == chunks
    assert count_loss_denominator(batches, "chunk_means") == chunks
    assert count_loss_denominator(batches, "tokens") == 2 * chunks


def test_who_is_only_imitated_is_not_counted():
    alone = Sample((make_turn([1], [2]),), np.zeros(0, np.float32), num_prefix_turns=1)
    for aggregation in AGGREGATIONS:
        assert count_loss_denominator(pack_all([alone], SHAPES[0]), aggregation, 1) == 1
    both = pack_all([alone, *make_samples()], SHAPES[1])
    assert count_loss_denominator(both, "trajectories") == 7


def test_an_empty_step_is_not_divided_by_zero():
    assert count_loss_denominator([], "tokens") == 1


def test_an_unknown_aggregation_is_refused():
    with pytest.raises(ValueError, match=r"rows.*tokens, chunks, chunk_means"):
        LossHypers(aggregation="rows")

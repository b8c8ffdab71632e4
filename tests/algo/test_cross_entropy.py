"""Cross entropy on observations (ECHO) against loops in numpy, and what it must leave alone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.algo.losses import observation_mask
from ale_jax.config.loss import AGGREGATIONS, LossHypers
from tests.algo.batches import (
    AT_LEVELS,
    IPA,
    IPA_MASK,
    f32,
    loss_and_grad,
    make_batch,
    random_batch,
)

# "p" a prompt token, "x" a token of a prefix turn, "o" an observation, "." padding:
#   p x p [c0] o [c1] o o [c2 c2]   p [c3] o [c4]   p p   . .
CHUNK = [[-1, -1, -1, 0, -1, 1, -1, -1, 2, 2, -1, 3, -1, 4, -1, -1, -1, -1]]
SEGMENT = [[1] * 10 + [2] * 4 + [3] * 2 + [0] * 2]
OBSERVED = [[0, 0, 0, 0, 1, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]]


def test_observations_begin_after_the_first_chunk_of_their_own_trajectory():
    nothing = [[0] * 18]  # a row of padding alone
    found_BT = observation_mask(jnp.array([*CHUNK, [-1] * 18]), jnp.array(SEGMENT + nothing))
    np.testing.assert_array_equal(found_BT, np.array(OBSERVED + nothing, bool))


def by_loops(logp_BT, chunk_BT, segment_BT, aggregation):
    """sum_t s_t (-log pi(t)) over the observations, and their number."""
    total, count = 0.0, 0
    for logp_T, chunk_T, segment_T in zip(logp_BT, chunk_BT, segment_BT):
        answers = {}  # (segment, number of chunks so far) -> losses of the answer's tokens
        for segment in set(segment_T[segment_T > 0].tolist()):
            chunks = set()
            for logp, chunk in zip(logp_T[segment_T == segment], chunk_T[segment_T == segment]):
                if chunk >= 0:
                    chunks.add(chunk)
                elif chunks:
                    answers.setdefault((segment, len(chunks)), []).append(-logp)
        count += sum(map(len, answers.values()))
        if aggregation == "chunk_means":
            total += sum(np.mean(losses) for losses in answers.values())
        elif aggregation == "trajectory_means":
            for segment in {segment for segment, _ in answers}:
                own = [x for (s, _), losses in answers.items() if s == segment for x in losses]
                total += np.mean(own)
        else:
            total += sum(x for losses in answers.values() for x in losses)
    return total, count


@pytest.mark.heavy
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_term_is_the_cross_entropy_of_the_observations_over_z(aggregation):
    length = 9 if aggregation == "constant" else 0
    hp = LossHypers("vanilla", aggregation=aggregation, constant_tokens=length)
    echo = dataclasses.replace(hp, observation_weight=0.3)
    logp_BT = f32(-np.random.default_rng(0).exponential(1.0, (1, 18)))
    batch = make_batch(CHUNK, SEGMENT, advantage_BC=[[1.0, -2.0, 0.5, 1.0, -1.0]])
    plain, _, plain_BT = loss_and_grad(logp_BT, batch, hp, loss_denominator=7.0)
    value, sums, grad_BT = loss_and_grad(logp_BT, batch, echo, loss_denominator=7.0)
    total, count = by_loops(logp_BT, np.array(CHUNK), np.array(SEGMENT), aggregation)
    np.testing.assert_allclose(value - plain, 0.3 * total / 7, rtol=1e-5)
    summed, _ = by_loops(logp_BT, np.array(CHUNK), np.array(SEGMENT), "tokens")
    np.testing.assert_allclose(sums["observation_nll"], summed, rtol=1e-5)
    assert sums["observation_tokens"] == count == 4
    observed_BT = np.array(OBSERVED, bool)
    np.testing.assert_array_equal(np.where(observed_BT, plain_BT, grad_BT), plain_BT)
    pushes = {"chunk_means": [1, 0.5, 0.5, 1], "trajectory_means": [1 / 3] * 3 + [1]}
    expected = -0.3 / 7 * np.array(pushes.get(aggregation, [1, 1, 1, 1]))
    np.testing.assert_allclose(grad_BT[observed_BT], expected, rtol=1e-6)


@pytest.mark.heavy
@pytest.mark.parametrize("name", AT_LEVELS)
def test_no_weight_reads_nothing_and_a_weight_leaves_the_rest_to_the_bit(name):
    logp_BT, entropy_BT, batch = random_batch(10)
    hp = dataclasses.replace(AT_LEVELS[name], kl_weight=0.1, kl_estimator="k3", entropy_weight=0.1)
    echo = dataclasses.replace(hp, observation_weight=0.5)
    plain, sums, grad_BT = loss_and_grad(logp_BT, batch, hp, IPA_MASK, entropy_BT=entropy_BT)
    both, more, both_BT = loss_and_grad(logp_BT, batch, echo, IPA_MASK, entropy_BT=entropy_BT)
    assert more.keys() - sums.keys() == {"observation_tokens", "observation_nll"}
    for metric in sums:
        np.testing.assert_array_equal(more[metric], sums[metric])
    observed_BT = np.asarray(observation_mask(batch["chunk_BT"], batch["segment_BT"]))
    assert not grad_BT[observed_BT].any()
    np.testing.assert_array_equal(both_BT, np.where(observed_BT, f32(-0.5 / 6), grad_BT))
    np.testing.assert_allclose(both - plain, 0.5 * more["observation_nll"] / 6, rtol=1e-4)

    unread_BT = np.where(batch["chunk_BT"] >= 0, logp_BT, np.nan)
    again = loss_and_grad(unread_BT, batch, hp, IPA_MASK, entropy_BT=entropy_BT)
    jax.tree.map(np.testing.assert_array_equal, again, (plain, sums, grad_BT))


@pytest.mark.parametrize("aggregation", ["tokens", "chunk_means", "trajectory_means"])
def test_nan_elsewhere_has_no_influence(aggregation):
    logp_BT, _, batch = random_batch(11)
    hp = dataclasses.replace(IPA, aggregation=aggregation, observation_weight=0.5)
    clean = loss_and_grad(logp_BT, batch, hp)
    written_BT = batch["chunk_BT"] >= 0
    read_BT = written_BT | np.asarray(observation_mask(batch["chunk_BT"], batch["segment_BT"]))
    garbage = {
        name: np.where(written_BT, x, np.nan) if name.startswith(("logp", "adv")) else x
        for name, x in batch.items()
    }
    dirty = loss_and_grad(np.where(read_BT, logp_BT, np.nan), garbage, hp)
    jax.tree.map(np.testing.assert_array_equal, dirty, clean)
    assert 0 < read_BT.sum() < read_BT.size

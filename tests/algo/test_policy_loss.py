"""The whole loss: IPA by hand, what the losses have in common, and what no mask may let through."""

import dataclasses
import itertools
import math

import jax
import numpy as np
import pytest

from ale_jax.algo.policy_loss import policy_loss, ratio_figures
from ale_jax.config.algo import MismatchHypers
from ale_jax.config.loss import LossHypers
from tests.algo.batches import (
    AGGREGATED,
    AT_LEVELS,
    EVERY_LOSS,
    IPA,
    IPA_MASK,
    LN2,
    OFF,
    f32,
    loss_and_grad,
    make_batch,
    random_batch,
)

# Two trajectories in one row, "p" a prompt token, "o" an observation:
#   success  p [c0 c0] o [c1]     c1 is dropped: pi_old/mu = e^0.3 > 1.2
#   failure  p [c2 c2] o [c3]     c2: ratio e^0.7, truncated to 1; c3: ratio 1/2
LOGP_BT = f32([[0.0, -1.0, -2.0, 0.0, -0.7, 0.0, -1.0, -1.0, 0.0, -3.0]])
OLD_BT = [[0.0, -1.5, -2.5, 0.0, -1.0, 0.0, -1.5, -1.9, 0.0, -3.0 + LN2]]
MU_BT = [[0.0, -1.5, -2.5, 0.0, -1.3, 0.0, -1.5, -1.9, 0.0, -3.0 + LN2]]
EXAMPLE = make_batch(
    [[-1, 0, 0, -1, 1, -1, 2, 2, -1, 3]],
    [[1] * 5 + [2] * 5],
    logp_old_BT=OLD_BT,
    logp_mu_BT=MU_BT,
    advantage_BC=[[0.5, 0.6, -0.5, -0.4]],
)


def test_eq9_by_hand():
    value, sums, grad_BT = loss_and_grad(LOGP_BT, EXAMPLE, IPA, IPA_MASK)
    #   c0: 1 * 0.5 * (-1 - 2) = -1.5    c2: 1 * -0.5 * (-1 - 1) = 1.0
    #   c1: dropped                      c3: 1/2 * -0.4 * -3 = 0.6       sum 0.1
    np.testing.assert_allclose(value, -0.1 / 6, rtol=1e-5)
    weight = np.array([[0, 0.5, 0.5, 0, 0, 0, -0.5, -0.5, 0, -0.2]])
    np.testing.assert_allclose(grad_BT, -weight / 6, rtol=1e-5)
    assert {k: float(sums[k]) for k in ("tokens", "chunks")} == {"tokens": 6, "chunks": 4}
    assert sums["masked_chunks"] == 1 and sums["masked_tokens"] == 1
    assert sums["clipped_tokens"] == 2  # those of c2; c1 would be, and is dropped
    ratios = math.exp(0.5) + math.exp(0.3) + math.exp(0.7) + 0.5
    np.testing.assert_allclose(sums["ratio"], ratios, rtol=1e-6)
    assert sums["ratios"] == 4
    np.testing.assert_allclose(sums["old_rollout_logp_diff"], 0.3, rtol=1e-5)
    # Of tokens 0.5, 0.5, 0.3, 0.5, 0.9 and -log 2; all lie outside [0.8, 1.2].
    figures = ratio_figures(sums)
    found = {name: math.log(x) for name, x in figures.items() if "_far" not in name}
    expected = {"ratio_p1": -LN2, "ratio_p50": 0.5, "ratio_p99": 0.9, "ratio_max": 0.9}
    expected |= {"chunk_ratio_p1": -LN2, "chunk_ratio_p50": 0.3}
    assert found == pytest.approx(
        expected | {"chunk_ratio_p99": 0.7, "chunk_ratio_max": 0.7}, rel=0.03
    )
    assert (sums["token_ratios_far"], sums["chunk_ratios_far"]) == (6, 4)


def eq9_by_tables(logp_BT, batch, loss_denominator):
    """Eq 9 as a sum over chunks, each with one advantage: the loss and its gradient."""
    loss, grad_BT = 0.0, np.zeros_like(logp_BT)
    for b, chunk_T in enumerate(batch["chunk_BT"]):
        for chunk in range(chunk_T.max() + 1):
            own_T = chunk_T == chunk
            logp, old, mu, advantage = (
                x_BT[b, own_T].astype(np.float64)
                for x_BT in (
                    logp_BT,
                    *(batch[f"{x}_BT"] for x in ("logp_old", "logp_mu", "advantage")),
                )
            )
            ratio, gap = math.exp((logp - old).mean()), (old - mu).mean()
            weight = 1.0 if advantage[0] > 0 else min(ratio, 1.0)
            coefficient = (gap <= math.log(1.2)) * weight * advantage[0] / loss_denominator
            loss -= coefficient * logp.sum()
            grad_BT[b, own_T] = -coefficient
    return loss, grad_BT


def test_a_sum_over_tokens_is_eq9_over_a_table_of_chunks():
    for seed in range(5):
        logp_BT, _, batch = random_batch(seed)
        value, _, grad_BT = loss_and_grad(logp_BT, batch, IPA, IPA_MASK)
        expected, expected_BT = eq9_by_tables(logp_BT, batch, 6.0)
        np.testing.assert_allclose(value, expected, rtol=1e-5)
        np.testing.assert_allclose(grad_BT, expected_BT, rtol=1e-6)


@pytest.mark.parametrize("name", AT_LEVELS)
def test_at_ratio_1_every_loss_is_the_plain_policy_gradient(name):
    logp_BT, _, batch = random_batch(1, gap=0.0)
    _, _, grad_BT = loss_and_grad(logp_BT, batch, AT_LEVELS[name])
    np.testing.assert_allclose(grad_BT, -batch["advantage_BT"] / 6, rtol=1e-5)
    assert np.abs(grad_BT).max() > 0.01


@pytest.mark.parametrize("name", AT_LEVELS)
def test_without_advantage_there_is_no_gradient(name):
    logp_BT, _, batch = random_batch(2)
    batch |= {"advantage_BT": np.zeros_like(logp_BT)}
    if name.startswith("kimi"):  # but for the pull of the square, which is 0 on policy
        batch |= {"logp_old_BT": logp_BT}
    _, _, grad_BT = loss_and_grad(logp_BT, batch, AT_LEVELS[name])
    assert not grad_BT.any()


@pytest.mark.heavy
@pytest.mark.parametrize("name", AT_LEVELS)
def test_a_negative_weight_is_a_factor_on_what_failures_teach(name):
    logp_BT, _, batch = random_batch(2)
    less = dataclasses.replace(AT_LEVELS[name], negative_weight=0.25)
    failures_BT = batch["advantage_BT"] < 0
    by_hand = batch | {"advantage_BT": batch["advantage_BT"] * np.where(failures_BT, 0.25, 1.0)}
    _, _, found_BT = loss_and_grad(logp_BT, batch, less)
    _, _, expected_BT = loss_and_grad(logp_BT, by_hand, AT_LEVELS[name])
    np.testing.assert_array_equal(found_BT, expected_BT)
    assert not np.allclose(found_BT, loss_and_grad(logp_BT, batch, AT_LEVELS[name])[2])


def test_what_is_positive_is_decided_token_by_token():
    """Of topr with credit by steps: a success's chunk below its peers is a push downwards."""
    logp_BT, _, batch = random_batch(5)
    hp = EVERY_LOSS["topr"]
    _, _, grad_BT = loss_and_grad(logp_BT, batch, hp, loss_denominator=1.0)
    ratio_BT = np.exp(logp_BT - batch["logp_old_BT"])
    weight_BT = np.where(batch["advantage_BT"] > 0, 1.0, np.minimum(ratio_BT, 1.0))
    expected_BT = np.where(batch["chunk_BT"] >= 0, -weight_BT * batch["advantage_BT"], 0.0)
    np.testing.assert_allclose(grad_BT, expected_BT, rtol=1e-5)


def test_one_chunk_per_trajectory_makes_ipa_sequence_level_topr():
    logp_BT, _, batch = random_batch(3)
    one = np.where((batch["chunk_BT"] == 0) | (batch["chunk_BT"] == 2), batch["chunk_BT"] // 2, -1)
    batch |= {"chunk_BT": one}
    of_chunks = loss_and_grad(logp_BT, batch, IPA, IPA_MASK)
    sequence = dataclasses.replace(IPA, level="sequence")
    mask = MismatchHypers(filter_level="sequence", filter_high=1.2)
    of_sequences = loss_and_grad(logp_BT, batch, sequence, mask)
    np.testing.assert_array_equal(of_chunks[0], of_sequences[0])
    np.testing.assert_array_equal(of_chunks[2], of_sequences[2])
    other = loss_and_grad(*random_batch(3)[::2], sequence, mask)
    assert not np.allclose(other[2], loss_and_grad(*random_batch(3)[::2], IPA, IPA_MASK)[2])


def test_at_the_sequence_level_ppo_has_the_gradient_of_gspo():
    """GSPO: mean over trajectories of min(s A, clip(s) A), s differentiated as it stands."""
    logp_BT, _, batch = random_batch(4)
    advantage_BC = np.array([[1.0, -2.0], [0.5, 1.5], [-1.0, 0.3]])
    segment_BT = np.where(batch["chunk_BT"] >= 0, batch["segment_BT"] - 1, -1)
    batch |= {"advantage_BT": np.take_along_axis(advantage_BC, np.maximum(segment_BT, 0), 1)}

    hp = LossHypers("ppo", "sequence", clip_low=0.1, clip_high=0.1, aggregation="trajectory_means")
    value, _, grad_BT = loss_and_grad(logp_BT, batch, hp, loss_denominator=6.0)  # 3 rows of 2
    expected, expected_BT = 0.0, np.zeros_like(logp_BT)
    for row, segment in itertools.product(range(3), range(2)):
        own_T, advantage = segment_BT[row] == segment, advantage_BC[row, segment]
        ratio = math.exp((logp_BT - batch["logp_old_BT"])[row, own_T].mean())
        clipped = min(max(ratio, 0.9), 1.1)
        expected -= min(ratio * advantage, clipped * advantage) / 6
        if ratio * advantage <= clipped * advantage:
            expected_BT[row, own_T] = -ratio * advantage / own_T.sum() / 6
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(grad_BT, expected_BT, rtol=1e-5, atol=1e-7)
    assert (grad_BT != 0).any() and not grad_BT[batch["chunk_BT"] >= 0].all()  # some are clipped


def test_decoupled_ppo_by_hand():
    batch = make_batch(
        [[-1, 0, 0]],
        [[1, 1, 1]],
        advantage_BT=[[0, 2, -2]],
        logp_old_BT=[[0, -1 - LN2, -1]],
        logp_prox_BT=[[0, -1, -1 - LN2]],
    )
    logp_BT = f32([[0.0, -1.0 + math.log(1.1), -1.0]])
    hp = LossHypers("decoupled_ppo", clip_low=0.2, clip_high=0.2, ratio_cap=1.5)
    # Token 1: pi/prox 1.1, prox/old 2, capped to 1.5: 1.5 * 1.1 * 2. Token 2: pi/prox 2, prox/old
    # 1/2: 1/2 * 2 * -2.
    value, sums, grad_BT = loss_and_grad(logp_BT, batch, hp, loss_denominator=1.0)
    np.testing.assert_allclose(value, -(3.3 - 2.0), rtol=1e-5)
    np.testing.assert_allclose(grad_BT, [[0, -3.3, 2.0]], rtol=1e-5)
    np.testing.assert_allclose(sums["ratio"], 2.2 + 1.0, rtol=1e-5)  # pi / pi_old
    # As one chunk: prox/old sqrt(2 * 1/2) = 1, pi/prox sqrt(1.1 * 2) = 1.48, clipped where A > 0.
    chunk = dataclasses.replace(hp, level="chunk")
    value, _, grad_BT = loss_and_grad(logp_BT, batch, chunk, loss_denominator=1.0)
    np.testing.assert_allclose(value, -(2.4 - 2 * 2.2**0.5), rtol=1e-5)
    np.testing.assert_allclose(grad_BT, [[0, 0, 2 * 2.2**0.5]], rtol=1e-5)


@pytest.mark.heavy
@pytest.mark.parametrize("name", AGGREGATED)
def test_masked_tokens_might_as_well_not_be_there(name):
    """loss(x[mask]) == loss(x, where=mask), and so for the gradient."""
    mismatch = MismatchHypers("token", 1.1, "chunk", 0.9, 1.1)
    logp_BT, entropy_BT, batch = random_batch(5)
    terms = {"kl_weight": 0.1, "kl_estimator": "k3", "entropy_weight": 0.1}
    hp = dataclasses.replace(AGGREGATED[name], **terms)
    whole, sums, grad_BT = loss_and_grad(logp_BT, batch, hp, mismatch, entropy_BT=entropy_BT)
    assert 0 < sums["masked_tokens"] < sums["tokens"]

    written_T = batch["chunk_BT"][0] >= 0
    short = {k: x[:, written_T] for k, x in batch.items()}
    value, _, short_BT = loss_and_grad(
        logp_BT[:, written_T], short, hp, mismatch, entropy_BT=entropy_BT[:, written_T]
    )
    np.testing.assert_allclose(value, whole, rtol=1e-5)
    np.testing.assert_allclose(short_BT, grad_BT[:, written_T], rtol=1e-5, atol=1e-8)

    garbage = {
        k: np.where(batch["chunk_BT"] >= 0, x, np.nan) if k.startswith(("logp", "adv")) else x
        for k, x in batch.items()
    }
    nan_BT = np.where(batch["chunk_BT"] >= 0, logp_BT, np.nan)
    value, sums_nan, nan_grad_BT = loss_and_grad(
        nan_BT, garbage, hp, mismatch, entropy_BT=entropy_BT + 0 * nan_BT
    )
    np.testing.assert_array_equal(value, whole)
    np.testing.assert_array_equal(nan_grad_BT, grad_BT)
    jax.tree.map(np.testing.assert_array_equal, sums_nan, sums)


@pytest.mark.parametrize("name", AGGREGATED)
def test_a_filter_takes_gradient_away_in_every_mode_and_gives_none_to_others(name):
    hp = dataclasses.replace(AGGREGATED[name], kl_weight=0.1, kl_estimator="k2")
    logp_BT, _, batch = random_batch(6)
    _, _, grad_BT = loss_and_grad(logp_BT, batch, hp)
    mismatch = MismatchHypers(filter_level="chunk", filter_high=1.1)
    _, sums, filtered_BT = loss_and_grad(logp_BT, batch, hp, mismatch)
    gap_BT = np.where(batch["chunk_BT"] >= 0, batch["logp_old_BT"] - batch["logp_mu_BT"], 0.0)
    np.testing.assert_allclose(sums["old_rollout_logp_diff"], np.abs(gap_BT).sum(), rtol=1e-5)
    own_CBT = batch["chunk_BT"] == np.arange(4)[:, None, None]
    kept_BC = (np.mean([gap_BT] * 4, axis=2, where=own_CBT) <= math.log(1.1)).T
    assert 0 < kept_BC.sum() < kept_BC.size == kept_BC.sum() + int(sums["masked_chunks"])
    kept_BT = np.take_along_axis(kept_BC, np.maximum(batch["chunk_BT"], 0), 1)
    np.testing.assert_array_equal(filtered_BT, np.where(kept_BT, grad_BT, 0.0))


@pytest.mark.heavy
@pytest.mark.parametrize("name", AT_LEVELS)
def test_full_masks_and_extreme_gaps_are_harmless(name):
    logp_BT, _, batch = random_batch(7)
    nobody = batch | {"chunk_BT": np.full_like(batch["chunk_BT"], -1)}
    value, sums, grad_BT = loss_and_grad(logp_BT, nobody, AT_LEVELS[name], IPA_MASK)
    assert value == 0.0 and not grad_BT.any() and sums["tokens"] == 0
    closed = MismatchHypers(filter_level="token", filter_low=1.0, filter_high=1.0)
    value, sums, grad_BT = loss_and_grad(logp_BT, batch, AT_LEVELS[name], closed)
    assert value == 0.0 and not grad_BT.any() and sums["masked_tokens"] == sums["tokens"] > 0
    for far in (-1e4, 1e4):
        away = batch | dict.fromkeys(("logp_old_BT", "logp_prox_BT", "logp_ref_BT"), logp_BT + far)
        hp = dataclasses.replace(AT_LEVELS[name], kl_weight=1.0, kl_estimator="k3")
        value, sums, grad_BT = loss_and_grad(
            logp_BT, away, hp, MismatchHypers("sequence", 2.0, "none")
        )
        assert all(np.isfinite(x).all() for x in (value, grad_BT, *sums.values()))


def test_two_conversations_of_an_episode_weigh_as_one_trajectory_of_their_tokens():
    """Of one token and of three: the mean over all four."""
    batch = make_batch(
        [[-1, 0, -1, 1, 1, 1]],
        [[1, 1, 2, 2, 2, 2]],
        advantage_BT=[[0, 1, 0, 2, 3, 4]],
        weight_BT=[[0.25] * 2 + [0.75] * 4],
    )
    hp = LossHypers("vanilla", aggregation="trajectory_means")
    _, _, grad_BT = loss_and_grad(f32([[0, -1, 0, -1, -1, -1]]), batch, hp, loss_denominator=1.0)
    np.testing.assert_allclose(grad_BT, -np.array([[0, 1, 0, 2, 3, 4]]) / 4, rtol=1e-6)


def test_trajectory_means_by_hand():
    """Three tokens of one trajectory and one of another: each trajectory weighs one half."""
    batch = make_batch(
        [[-1, 0, 0, -1, 1, -1, 2]], [[1] * 5 + [2] * 2], advantage_BT=[[0, 3, 3, 0, 3, 0, 5]]
    )
    hp = LossHypers("vanilla", aggregation="trajectory_means")
    _, _, grad_BT = loss_and_grad(f32([[0, -1, -1, 0, -1, 0, -1]]), batch, hp, loss_denominator=2.0)
    np.testing.assert_allclose(grad_BT, -np.array([[0, 1, 1, 0, 1, 0, 5]]) / 2, rtol=1e-6)


def test_chunk_means_by_hand():
    """Chunks of three tokens, of one, and of two in another trajectory: each weighs one third."""
    batch = make_batch(
        [[-1, 0, 0, 0, -1, 1, -1, 2, 2]], [[1] * 6 + [2] * 3], advantage_BC=[[3.0, 5.0, 4.0]]
    )
    hp = LossHypers("vanilla", aggregation="chunk_means")
    logp_BT = f32([[0, -1, -2, -3, 0, -1, 0, -1, -3]])
    value, _, grad_BT = loss_and_grad(logp_BT, batch, hp, loss_denominator=3.0)
    np.testing.assert_allclose(value, (3 * 2 + 5 * 1 + 4 * 2) / 3, rtol=1e-6)
    expected_BT = -np.array([[0, 1, 1, 1, 0, 5, 0, 2, 2]]) / 3
    np.testing.assert_allclose(grad_BT, expected_BT, rtol=1e-6)


@pytest.mark.parametrize("name", EVERY_LOSS)
def test_chunks_of_one_token_have_one_mean(name):
    logp_BT, _, batch = random_batch(9)
    single_BT = np.array([[-1, 0, -1, -1, -1, 1, -1, -1, -1, 2, -1, 3, -1, -1]] * 3)
    batch |= {"chunk_BT": single_BT}
    means, chunks, tokens = (
        loss_and_grad(
            logp_BT, batch, dataclasses.replace(EVERY_LOSS[name], aggregation=each), IPA_MASK
        )
        for each in ("chunk_means", "chunks", "tokens")
    )
    for other in (chunks, tokens):
        np.testing.assert_array_equal(means[0], other[0])
        np.testing.assert_array_equal(means[2], other[2])
    assert means[2].any()


def test_the_imitation_term_by_hand():
    """Eq 10: -(1/Z) sum i log pi over given tokens, which have no chunk and no other term."""
    batch = make_batch(
        [[-1, -1, -1, -1, 0]],
        [[1] * 5],
        imitate_BT=[[0, 0.5, 0.25, 0, 0]],
        advantage_BT=[[0, 0, 0, 0, 1.0]],
    )
    logp_BT = f32([[np.nan, -2.0, -4.0, np.nan, -1.0]])
    value, sums, grad_BT = loss_and_grad(
        logp_BT, batch, LossHypers("vanilla"), loss_denominator=2.0
    )
    np.testing.assert_allclose(value, (1.0 + 1.0 + 1.0) / 2, rtol=1e-6)
    np.testing.assert_allclose(grad_BT, [[0, -0.25, -0.125, 0, -0.5]], rtol=1e-6)
    assert sums["tokens"] == 1
    means = LossHypers("vanilla", aggregation="trajectory_means")
    _, _, grad_BT = loss_and_grad(logp_BT, batch, means, loss_denominator=2.0)
    np.testing.assert_allclose(grad_BT, [[0, -0.125, -0.0625, 0, -0.5]], rtol=1e-6)
    means = LossHypers("vanilla", aggregation="chunk_means")
    batch |= {"imitate_BT": f32([[0, 0.5, 0, 0.25, 0.25]]), "chunk_BT": np.full((1, 5), -1)}
    logp_BT = f32([[np.nan, -2.0, np.nan, -4.0, -1.0]])
    _, _, grad_BT = loss_and_grad(logp_BT, batch, means, loss_denominator=2.0)
    np.testing.assert_allclose(grad_BT, [[0, -0.25, 0, -0.0625, -0.0625]], rtol=1e-6)


def test_weights_of_the_mismatch_and_of_divergence_and_entropy_by_hand():
    batch = make_batch(
        [[-1, 0, 0, 1]],
        [[1, 1, 1, 1]],
        advantage_BT=[[0, 1, 1, 1]],
        logp_mu_BT=[[0, -2 * LN2, 0, -1.0]],
        logp_ref_BT=[[0, -1.0, -1.0, -1.0]],
    )
    batch["logp_old_BT"] = f32([[0, 0, 0, -1.0]])
    logp_BT = f32([[0, -1.5, -1.5, -1.5]])
    # Of chunk 0: sqrt(4 * 1) = 2, capped to 1.5; chunk 1: 1.
    _, _, grad_BT = loss_and_grad(
        logp_BT, batch, LossHypers("vanilla"), MismatchHypers("chunk", 1.5), loss_denominator=1.0
    )
    np.testing.assert_allclose(grad_BT, [[0, -1.5, -1.5, -1]], rtol=1e-6)
    # k2: d/dlogp = logp - ref = -1/2, times the weight 0.2, and not times pi_old / mu.
    hp = LossHypers("vanilla", kl_weight=0.2, kl_estimator="k2")
    _, _, grad_BT = loss_and_grad(
        logp_BT, batch, hp, MismatchHypers("chunk", 1.5), loss_denominator=1.0
    )
    np.testing.assert_allclose(grad_BT, [[0, -1.6, -1.6, -1.1]], rtol=1e-6)

    hp = LossHypers("vanilla", entropy_weight=0.5)
    entropy_BT = f32([[9.0, 1.0, 2.0, 4.0]])
    bare = loss_and_grad(logp_BT, batch, LossHypers("vanilla"), loss_denominator=2.0)[0]
    bonus = loss_and_grad(logp_BT, batch, hp, loss_denominator=2.0, entropy_BT=entropy_BT)[0] - bare
    np.testing.assert_allclose(bonus, -0.5 * 7 / 2, rtol=1e-5)
    batch["entropy_BT"] = f32([[9.0, 1.0, 0.0, 2.0]])
    bonus = loss_and_grad(logp_BT, batch, hp, loss_denominator=2.0, entropy_BT=entropy_BT)[0] - bare
    np.testing.assert_allclose(bonus, -0.5 * (1 + 8) / 2, rtol=1e-5)


@pytest.mark.heavy
@pytest.mark.parametrize("name", AT_LEVELS)
def test_microbatches_add_up_to_the_whole(name):
    logp_BT, _, batch = random_batch(8, rows=4)
    aggregation = "chunk_means" if name.endswith("chunk") else "trajectory_means"
    hp = dataclasses.replace(AT_LEVELS[name], aggregation=aggregation, observation_weight=0.1)
    whole, sums, grad_BT = loss_and_grad(logp_BT, batch, hp, IPA_MASK)
    parts = [
        loss_and_grad(logp_BT[s], {k: x[s] for k, x in batch.items()}, hp, IPA_MASK)
        for s in (slice(1), slice(1, 4))
    ]
    np.testing.assert_allclose(sum(p[0] for p in parts), whole, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(np.concatenate([p[2] for p in parts]), grad_BT)
    for name in sums:
        np.testing.assert_allclose(sum(p[1][name] for p in parts), sums[name], rtol=1e-4)


def test_jitted_and_vmapped_equals_eager():
    every = [random_batch(seed) for seed in (1, 2)]
    stacked = jax.tree.map(lambda *x: np.stack(x), *every)
    mapped = jax.jit(jax.vmap(lambda *one: policy_loss(*one, 9.0, 4, IPA, OFF)[0]))(*stacked)
    for (logp_BT, _, batch), value in zip(every, mapped, strict=True):
        np.testing.assert_allclose(
            loss_and_grad(logp_BT, batch, IPA, OFF, 9.0)[0], value, rtol=1e-5
        )

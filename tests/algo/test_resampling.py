"""Where episodes start, what is imitated, which chunks decide: numbers worked out by hand."""

import numpy as np
import pytest

from ale_jax.algo.resampling import (
    CrucialChunk,
    anchor_starts,
    crucial_chunks,
    decision_weights,
    fisher_less,
    gamma_of_decisions,
    holm,
    imitation_weights,
)
from ale_jax.config.resampling import ResamplingHypers
from tests.rows import each_row


@each_row(
    "num_chunks, starts",
    [(5, [0, 1, 2, 4]), (8, [0, 2, 4, 7]), (2, [0, 0, 0, 1]), (1, [0, 0, 0, 0])],
)
def test_uniform_anchors_spread_evenly_from_the_beginning_to_the_last_chunk(num_chunks, starts):
    assert anchor_starts(num_chunks, 4, None) == starts


def test_random_anchors_differ_while_there_are_enough_and_never_end_the_episode():
    seen = set()
    for seed in range(40):
        first, *others = anchor_starts(5, 4, np.random.default_rng(seed))
        assert first == 0 and len(set(others)) == 3 and set(others) <= {1, 2, 3, 4}
        seen.add(tuple(others))
    assert {k for others in seen for k in others} == {1, 2, 3, 4} and len(seen) > 5
    assert anchor_starts(2, 3, np.random.default_rng(0)) == [0, 1, 1]
    assert anchor_starts(1, 3, np.random.default_rng(0)) == [0, 0, 0]


def test_the_imitated_chunks_end_with_the_crucial_one_and_are_discounted_from_the_end():
    # K = 4, chunks 0 and 1: lambda gamma^3 R = 0.2 x 0.125 x 2, and lambda gamma^2 R.
    weights = imitation_weights(start=1, num_chunks=4, reward=2.0, gamma=0.5, weight=0.2)
    np.testing.assert_allclose(weights, [0.05, 0.1], rtol=1e-6)
    assert weights.dtype == np.float32
    # At the last chunk everything is given, and the last one bears the undiscounted reward.
    np.testing.assert_allclose(imitation_weights(2, 3, 1.0, 0.5, 1.0), [0.25, 0.5, 1.0])


@each_row(
    "table, p_value",
    [
        ((0, 4, 4, 4), 1 / 70),  # one way of dealing 4 successes out among 8, of 70
        ((1, 4, 3, 4), 17 / 70),  # (C(4,0) C(4,4) + C(4,1) C(4,3)) / C(8,4)
        ((4, 4, 0, 4), 1.0),  # nothing can be further from "less"
        ((0, 3, 0, 5), 1.0),  # no success to be dealt out
        ((2, 2, 5, 5), 1.0),
        ((0, 1, 1, 1), 1 / 2),
    ],
)
def test_fishers_test_counts_the_ways(table, p_value):
    assert fisher_less(*table) == pytest.approx(p_value, rel=1e-12)


def test_holms_steps():
    # Sorted: 0.01 x 3, 0.03 x 2, and 0.04 x 1, which may not be smaller than the one before.
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_chunk_between_failing_and_succeeding_starts_is_crucial():
    (found,) = crucial_chunks([0, 1, 8, 8], [8, 8, 8, 8])
    assert (found.chunk, found.last) == (1, 1)
    assert (found.rate_before, found.rate_after) == (1 / 8, 1.0)
    # C(8,1) C(8,8) + C(8,0) C(8,9) = 8 ways of 11440 = C(16,9), and three chunks were asked about.
    assert found.p_value == pytest.approx(3 * 8 / 11440)


def test_the_more_chunks_are_asked_about_the_more_evidence_one_needs():
    few = crucial_chunks([0, 4, 4, 4], [4] * 4)
    assert few == (CrucialChunk(0, 0, 0.0, 1.0, pytest.approx(3 / 70)),)
    assert crucial_chunks([0, 4, 4, 4, 4], [4] * 5) == ()  # 4 / 70 > 0.05


def test_between_starts_that_were_tried_one_of_the_chunks_is_crucial():
    (found,) = crucial_chunks([0, 0, 0, 8], [8, 0, 0, 8])
    assert (found.chunk, found.last, found.rate_before, found.rate_after) == (0, 2, 0.0, 1.0)
    assert found.p_value == pytest.approx(1 / 12870)  # C(16,8); one question


def test_a_start_that_was_never_tried_is_not_asked():
    # Of one question 1 / 70 is enough, of four it would not be.
    assert [c.chunk for c in crucial_chunks([0, 4, 0, 0, 0], [4, 4, 0, 0, 0])] == [0]
    assert crucial_chunks([], []) == ()


def test_false_alarms_are_as_rare_as_promised():
    # 400 experts of 6 chunks with the same success from everywhere: at most 5 % may alarm.
    won = np.random.default_rng(0).binomial(24, 0.5, (400, 6))
    alarms = sum(bool(crucial_chunks(row.tolist(), [24] * 6)) for row in won)
    assert alarms <= 0.05 * 400


@pytest.mark.parametrize("counts", [([2], [1]), ([-1], [3])])
def test_counts_that_cannot_be_are_refused(counts):
    with pytest.raises(ValueError, match="give counts"):
        crucial_chunks(*counts)


@each_row(
    "changes, message",
    [
        ({"scheme": "forward"}, "scheme 'forward' is unknown"),
        ({"teacher": "me"}, "teacher 'me'"),
        ({"anchor_choice": "best"}, "anchor_choice 'best'"),
        ({"threshold": 1.0}, "threshold 1.0"),
        ({"window": 0}, "window 0"),
        ({"memory": 0}, "memory 0"),
        ({"imitation_weight": -1.0}, "imitation_weight -1.0"),
        ({"scheme": "parallel", "anchors": 1}, "anchors 1"),
        ({"imitation": "decisions"}, "imitation decisions is not read with scheme none"),
        ({"imitates_at_start": True}, "imitates_at_start True is not read with scheme none"),
        (
            {"scheme": "rollback", "imitates_at_start": True, "imitation_weight": 0.0},
            "imitates_at_start True is not read .* imitation_weight 0.0",
        ),
        (
            {"scheme": "adaptive", "imitation_fades": True, "imitation_weight": 0.0},
            "imitation_fades True is not read",
        ),
    ],
)
def test_hyperparameters_out_of_range_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        ResamplingHypers(**changes)


def test_gamma_puts_the_weights_where_the_decisions_are():
    def rates(*from_start):  # P_0 .. P_{K-1}
        return [(len(from_start) - k, p) for k, p in enumerate(from_start)]

    # All at the end; the last two of four alike: distances 0 and 1, gamma^j with the mean 1/2.
    assert gamma_of_decisions(rates(0.2, 0.2, 0.2, 0.2)) == pytest.approx(0.0, abs=1e-9)
    gamma = gamma_of_decisions(rates(0.2, 0.2, 0.2, 0.6))
    weight = gamma ** np.arange(4)
    assert (np.arange(4) * weight).sum() / weight.sum() == pytest.approx(0.5)
    # Evenly or early: no discount fits.
    assert gamma_of_decisions(rates(0.2, 0.4, 0.6, 0.8)) == 1.0
    assert gamma_of_decisions(rates(0.2, 1.0, 1.0, 1.0)) == 1.0
    # A start between two known ones changes nothing if it lies on the line between them.
    some = [(24, 0.1), (12, 0.1), (3, 0.1), (1, 0.7)]
    assert gamma_of_decisions([*some, (2, 0.4)]) == pytest.approx(gamma_of_decisions(some))
    # Noise that falls is no decision.
    assert gamma_of_decisions(rates(0.25, 0.2, 0.2, 0.6)) == pytest.approx(gamma)
    assert gamma_of_decisions([]) is None and gamma_of_decisions(rates(1.0, 1.0)) is None


def test_geometric_decisions_give_their_own_gamma():
    weight = 0.8 ** np.arange(10)  # by the distance to the end
    after = 1.0 - 0.9 * np.cumsum(weight) / weight.sum()
    rates = [(j + 1, p) for j, p in enumerate(after)]
    assert gamma_of_decisions(rates) == pytest.approx(0.8)


def test_decision_weights_are_the_rises_between_known_starts():
    # Starts 0 and 3 of 5 are known, with 5 and 2 chunks left, and the rate 1 at the end.
    found = decision_weights([(5, 0.1), (2, 0.4)], 5)
    np.testing.assert_allclose(found, [0.1, 0.1, 0.1, 0.3, 0.3], rtol=1e-6)
    # A fall is no decision, and before the first known start nothing is known.
    np.testing.assert_allclose(decision_weights([(3, 0.6), (1, 0.5)], 5), [0, 0, 0, 0, 0.5])
    np.testing.assert_array_equal(decision_weights([(9, 0.1)], 2), [0, 0])
    every = [(5 - k, p) for k, p in enumerate([0.1, 0.2, 0.2, 0.7, 0.9])]
    assert decision_weights(every, 5).sum() == pytest.approx(1 - 0.1)

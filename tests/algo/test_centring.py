"""The mean of chunk_return before and after the discount, against loops in numpy."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale_jax.algo.advantages import credit_chunks
from ale_jax.config.algo import AdvantageHypers
from tests.algo.test_advantages import credit, credit_of_group, make_rewards

OUTCOME, CHUNK, DISTANCE = (
    AdvantageHypers("chunk_return", "group", "none", centring)
    for centring in ("outcome", "chunk", "distance")
)
# Two groups; the fourth member was lost, the last two have no chunk and no equal.
OUTCOMES = [1.0, 1.0, 0.0, 1.0, 0.25, 0.0, 0.75]
LENGTHS = [2, 4, 3, 4, 1, 0, 5]
GROUPS = [0, 0, 0, 0, 1, 1, 1]
VALID = [True, True, True, False, True, True, True]


def by_loops(outcome_N, length_N, group_N, valid_N, gamma, hp, max_chunks=5):
    """A_k = G_k - mean of G over the members with a chunk at the same place, G_k = gamma^(K-k) R
    with k = 1..K. leave_one_out: over the others, or nothing if there is none."""
    n = len(outcome_N)
    advantage_NC = np.zeros((n, max_chunks))
    everyone = [i for i in range(n) if valid_N[i]]
    for i in everyone:
        for k in range(1, length_N[i] + 1):
            to_end = length_N[i] - k
            peers = []
            for j in everyone:
                place = k if hp.centring == "chunk" else length_N[j] - to_end
                if group_N[j] == group_N[i] and 1 <= place <= length_N[j]:
                    peers.append((j, gamma ** (length_N[j] - place) * outcome_N[j]))
            others = [g for j, g in peers if j != i]
            own = gamma**to_end * outcome_N[i]
            if hp.mean == "leave_one_out":
                advantage_NC[i, k - 1] = own - np.mean(others) if others else 0.0
            else:
                advantage_NC[i, k - 1] = own - np.mean([g for _, g in peers])
    return advantage_NC


@pytest.mark.heavy
@pytest.mark.parametrize("mean", ["group", "leave_one_out"])
@pytest.mark.parametrize("centring", ["chunk", "distance"])
def test_after_the_discount_chunks_are_compared_with_those_at_their_place(centring, mean):
    hp = AdvantageHypers("chunk_return", mean, "none", centring)
    found = credit(OUTCOMES, LENGTHS, GROUPS, hp, gamma=0.8, valid_N=VALID, max_chunks=5)
    expected_NC = by_loops(OUTCOMES, LENGTHS, GROUPS, VALID, 0.8, hp)
    np.testing.assert_allclose(found.advantage_NC, expected_NC, atol=1e-5)
    assert np.abs(expected_NC).max() > 0.1


@pytest.mark.heavy
def test_by_hand():
    args = [1.0, 1.0, 0.0], [1, 2, 2], [0, 0, 0]  # returns: 1; 1/2, 1; 0, 0
    found_NC = credit(*args, CHUNK).advantage_NC
    np.testing.assert_allclose(found_NC, [[0.5, 0, 0], [0, 0.5, 0], [-0.5, -0.5, 0]], atol=1e-6)
    found_NC = credit(*args, DISTANCE).advantage_NC  # last chunks: 1, 1, 0; before: 1/2, 0
    third = 1 / 3
    expected = [[third, 0, 0], [0.25, third, 0], [-0.25, -2 * third, 0]]
    np.testing.assert_allclose(found_NC, expected, atol=1e-6)


@pytest.mark.heavy
def test_only_after_the_discount_and_from_the_start_a_detour_costs():
    """Two successes, by 2 chunks and by a detour of four more."""
    args = [1.0, 1.0], [2, 6], [0, 0]
    for hp in (OUTCOME, DISTANCE):
        assert not credit(*args, hp, gamma=0.95, max_chunks=6).advantage_NC.any()
    short_C, long_C = credit(*args, CHUNK, gamma=0.95, max_chunks=6).advantage_NC
    half = (0.95 - 0.95**5) / 2
    np.testing.assert_allclose([short_C[0], long_C[0]], [half, -half], atol=1e-6)
    assert short_C[1] > 0 > long_C[1]
    assert not long_C[2:].any()  # nobody else has a chunk there


@pytest.mark.heavy
@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.floats(-2, 2, width=32), min_size=2, max_size=5),
    st.integers(1, 3),
    st.sampled_from(["group", "leave_one_out"]),
)
def test_without_discount_and_at_equal_lengths_there_is_one_centring(outcomes, length, mean):
    before, *after = (
        credit_of_group(
            outcomes, length, AdvantageHypers("chunk_return", mean, "none", centring), gamma=1.0
        )
        for centring in ("outcome", "chunk", "distance")
    )
    for each in after:
        np.testing.assert_array_equal(each, before)


@pytest.mark.heavy
@settings(deadline=None, max_examples=30)
@given(
    st.floats(-2, 2, width=32),
    st.integers(1, 9),
    st.sampled_from([CHUNK, DISTANCE]),
    st.sampled_from(["group", "leave_one_out"]),
)
def test_a_group_of_equals_teaches_exactly_nothing(outcome, size, hp, mean):
    hp = AdvantageHypers("chunk_return", mean, "none", hp.centring)
    assert not credit_of_group([outcome] * size, 3, hp, gamma=0.7).any()


@pytest.mark.heavy
def test_padding_and_lost_members_have_no_influence():
    rewards = make_rewards([1.0, 0.0, 1.0], [1, 3, 2], [0, 0, 0], valid_N=[True, True, False])
    for hp, filler in itertools.product((CHUNK, DISTANCE), (np.nan, 1e9)):
        clean_NC = credit_chunks(rewards, 1, 0.5, hp).advantage_NC
        reward_NC = np.where(rewards.real_NC, rewards.reward_NC, np.float32(filler))
        dirty = rewards._replace(reward_NC=reward_NC)
        np.testing.assert_array_equal(credit_chunks(dirty, 1, 0.5, hp).advantage_NC, clean_NC)
        assert clean_NC.any()

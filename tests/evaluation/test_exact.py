"""Counting, against counting everything."""

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale_jax.evaluation.exact import holm, pass_at_k, sign_flip_p


@given(st.integers(1, 9), st.data())
def test_pass_at_k_is_the_share_of_choices_with_a_solved_sample(samples, data):
    solved, k = data.draw(st.integers(0, samples)), data.draw(st.integers(1, samples))
    marks = [i < solved for i in range(samples)]
    choices = list(itertools.combinations(marks, k))
    share = Fraction(sum(map(any, choices)), len(choices))
    assert abs(pass_at_k(samples, solved, k) - share) <= 1e-15


def test_pass_at_k_holds_for_thousands_of_samples():
    # C(4999, 2500) / C(5000, 2500) = 2500 / 5000.
    assert pass_at_k(5000, 1, 2500) == 0.5
    assert pass_at_k(5000, 5000, 1) == 1.0 and pass_at_k(5000, 0, 5000) == 0.0


@pytest.mark.parametrize("wrong", [(3, 4, 1), (3, -1, 1), (3, 1, 4), (3, 1, 0)])
def test_a_pass_at_k_that_is_none_is_refused(wrong):
    with pytest.raises(ValueError, match="samples"):
        pass_at_k(*wrong)


@settings(max_examples=50)
@given(st.lists(st.integers(-4, 4), max_size=9))
def test_the_p_value_is_the_share_of_all_signs_that_are_as_far_from_zero(net_wins):
    signs = list(itertools.product((-1, 1), repeat=len(net_wins)))
    sums = [sum(s * w for s, w in zip(each, net_wins)) for each in signs]
    far = sum(abs(each) >= abs(sum(net_wins)) for each in sums)
    assert sign_flip_p(net_wins) == pytest.approx(far / len(signs), abs=1e-12)


def test_with_one_sample_it_is_mcnemars_exact_test():
    # Of 12 items that only one solves, 10 are the second's: 2 (1 + 12 + 66) / 2^12.
    assert sign_flip_p([1] * 10 + [-1] * 2 + [0] * 30) == pytest.approx(2 * 79 / 4096)
    assert sign_flip_p([0, 0]) == sign_flip_p([1, -1]) == sign_flip_p([]) == 1.0
    assert sign_flip_p([1] * 3000) < 1e-300


def test_holm_keeps_the_order_and_never_lowers():
    assert holm([0.5, 0.001, 0.02]) == pytest.approx([0.5, 0.003, 0.04])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([0.03]) == [0.03] and holm([]) == []
    assert math.isclose(holm([0.02, 0.02])[1], 0.04)

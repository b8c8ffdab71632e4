"""Intervals over items: by hand, where little is known, and how often they are right."""

import numpy as np
import pytest

from ale_jax.evaluation.intervals import difference, mean, rate, with_two_more
from ale_jax.monitor.evaluations import wilson_interval

DRAWS = 400


def test_with_one_sample_per_item_a_rate_has_wilsons_interval():
    found = rate([1.0] * 12 + [0.0] * 28)
    assert (found.value, found.items) == (0.3, 40)
    assert (found.low, found.high) == pytest.approx(wilson_interval(12, 40))


def test_samples_of_an_item_that_agree_count_as_one():
    assert rate([1.0, 0.0, 1.0, 0.0]) == rate([1.0, 0.0, 1.0, 0.0])
    torn, agreed = rate([0.5] * 20), rate([1.0, 0.0] * 10)
    assert torn.value == agreed.value == 0.5
    # Four more items, of 0, 0, 1, 1, among 20 of 0.5: variance 1 / 24, so 24 (1/4) 24 - 4 attempts.
    assert (torn.low, torn.high) == pytest.approx(wilson_interval(70, 140))
    assert (agreed.low, agreed.high) == pytest.approx(wilson_interval(10, 20))


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("items", [1, 3, 50])
def test_a_rate_of_0_or_1_has_a_width(value, items):
    found = rate([value] * items)
    assert (found.low, found.high) == pytest.approx(wilson_interval(value * items, items))
    assert found.high - found.low > 1 / (items + 1)


def test_a_mean_has_students_interval_or_none():
    # 1, 2, 3: deviation 1, so 2 ± 4.3027 / sqrt(3).
    found = mean([1.0, 2.0, 3.0])
    assert (found.value, found.low, found.high) == pytest.approx((2.0, -0.4841, 4.4841), abs=1e-4)
    for unknown in ([0.01], [0.01] * 50):
        found = mean(unknown)
        assert (found.value, found.low, found.high) == (pytest.approx(0.01), None, None)


def test_a_difference_has_two_more_items():
    assert with_two_more([1.0, 0.0]) == (0.25, 0.6875)  # of 1, 0, 1, -1
    # Four of 0 and two more: deviation sqrt(1 / 3), t of 5 degrees 2.5706.
    found = difference([0.0] * 4)
    half = 2.5706 * (1 / 3 / 6) ** 0.5
    assert (found.value, found.low, found.high) == pytest.approx((0, -half, half), abs=1e-4)
    assert difference([1.0] * 2).high == 1.0


def shares(kind, items, rates):
    """The chance at each item, drawn from one of three populations of mean 0.1 or 0.5."""
    rng = np.random.default_rng([items, int(100 * rates)])
    for _ in range(DRAWS):
        if kind == "alike":
            chance = np.full(items, rates)
        elif kind == "spread":
            chance = rng.beta(rates, 1 - rates, items)
        else:
            chance = (rng.random(items) < rates).astype(float)
        yield rng, chance


@pytest.mark.parametrize("kind", ["alike", "spread", "all or nothing"])
@pytest.mark.parametrize("rates", [0.1, 0.5])
@pytest.mark.parametrize(("items", "samples"), [(5, 1), (5, 8), (60, 1), (60, 8)])
def test_an_interval_of_95_percent_is_right_that_often(kind, rates, items, samples):
    right = {"rate": 0, "difference": 0}
    for rng, chance in shares(kind, items, rates):
        ours = rng.binomial(samples, chance) / samples
        theirs = rng.binomial(samples, rng.permutation(chance)) / samples
        its, gap = rate(ours), difference(theirs - ours)
        right["rate"] += its.low <= rates <= its.high
        right["difference"] += gap.low <= 0 <= gap.high
    # 95 % less three standard errors of a share of 400.
    assert min(right.values()) / DRAWS > 0.915, right

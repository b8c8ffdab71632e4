"""Rates over a family, and starts drawn by them."""

import json
from collections import Counter

import numpy as np
import pytest

from ale_jax.data.family_rates import LEAST_WEIGHT, FamilyRates


def test_rates_begin_at_a_half_and_old_outcomes_fade():
    rates = FamilyRates(window=8)
    assert rates.rate("vault", 3) == 0.5 and rates.rate("vault", 0) == 1.0
    rates.record("vault", 3, [True] * 4)
    assert rates.rate("vault", 3) == pytest.approx(5 / 6)
    rates.record("vault", 3, [False] * 4)  # of the four before, half are left
    assert rates.rate("vault", 3) == pytest.approx((2 + 1) / (2 + 4 + 2))
    rates.record("vault", 3, [False] * 8)
    assert rates.rate("vault", 3) == pytest.approx(1 / 10)
    assert rates.rate("vault", 2) == rates.rate("lane", 3) == 0.5


def test_starts_are_drawn_in_proportion_to_the_variance_of_outcomes():
    rates, rng = FamilyRates(window=1000), np.random.default_rng(0)
    rates.record("vault", 1, [True] * 998)  # rate 0.999
    rates.record("vault", 2, [True] * 74 + [False] * 24)  # 3/4
    rates.record("vault", 3, [False] * 998)  # 0.001
    drawn = Counter(rates.draw("vault", 4, rng) for _ in range(20_000))
    weights = {1: LEAST_WEIGHT, 2: 0.1875, 3: LEAST_WEIGHT}
    for start, weight in weights.items():
        share = weight / sum(weights.values())
        error = (share * (1 - share) / 20_000) ** 0.5
        assert drawn[start] / 20_000 == pytest.approx(share, abs=4 * error)
    assert rates.draw("vault", 1, rng) == 0


def test_a_resumed_run_draws_the_same():
    rates = FamilyRates(window=16)
    rates.record("vault", 2, [True, False, False])
    rates.record("lane", 1, [True])
    resumed = FamilyRates(window=16)
    resumed.load(json.loads(json.dumps(rates.to_json())))
    for family in ("vault", "lane"):
        assert [resumed.rate(family, k) for k in range(4)] == [
            rates.rate(family, k) for k in range(4)
        ]

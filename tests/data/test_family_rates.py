"""Rates over a family, and starts drawn by them."""

import json
from collections import Counter

import numpy as np
import pytest

from ale_jax.data.curriculum import LEAST_WEIGHT, FamilyRates


def test_rates_begin_at_a_half_and_old_outcomes_fade():
    rates = FamilyRates(window=8)
    assert rates.rate("vault", 3) == 0.5 and rates.rate("vault", 0) == 1.0
    rates.record("vault", 3, [True] * 4)
    assert rates.rate("vault", 3) == pytest.approx(5 / 6)
    rates.record("vault", 3, [False] * 4)  # of the four before, half are left
    assert rates.rate("vault", 3) == pytest.approx((2 + 1) / (2 + 4 + 2))
    rates.record("vault", 3, [False] * 8)
    assert rates.rate("vault", 3) == pytest.approx(1 / 10)
    rates.record("vault", 3, [True] * 24)  # more than the window: of those before, none
    assert rates.rate("vault", 3) == pytest.approx(25 / 26)
    assert rates.rate("vault", 2) == rates.rate("lane", 3) == 0.5


def test_a_rate_is_known_by_sixteen_outcomes():
    rates = FamilyRates(window=1000)
    assert rates.known("vault") == []
    rates.record("vault", 3, [True] * 15)
    rates.record("vault", 1, [True] * 15 + [False])  # in one piece: between pieces, counts fade
    assert rates.known("vault") == [(1, 16 / 18)]


def shares_of_starts(rates: FamilyRates, num_chunks: int, draws: int = 20_000) -> dict[int, float]:
    rng = np.random.default_rng(0)
    drawn = Counter(rates.draw("vault", num_chunks, rng) for _ in range(draws))
    return {start: drawn[start] / draws for start in range(num_chunks)}


def test_later_starts_are_drawn_in_proportion_to_the_variance_of_outcomes():
    rates = FamilyRates(window=1000)
    rates.record("vault", 1, [True] * 998)  # rate 0.999
    rates.record("vault", 2, [True] * 74 + [False] * 24)  # 3/4
    rates.record("vault", 3, [False] * 998)  # 0.001
    rates.record("vault", 4, [False] * 998)
    found = shares_of_starts(rates, 4)
    beginning = 0.001 * 0.999 / 0.1875
    weights = {1: LEAST_WEIGHT, 2: 0.1875, 3: LEAST_WEIGHT}
    expected = {k: (1 - beginning) * w / sum(weights.values()) for k, w in weights.items()}
    for start, share in ({0: beginning} | expected).items():
        error = (share * (1 - share) / 20_000) ** 0.5
        assert found[start] == pytest.approx(share, abs=4 * error), start


def test_episodes_start_at_the_beginning_as_far_as_outcomes_differ_there():
    rates = FamilyRates(window=1000)
    assert rates.draw("vault", 1, np.random.default_rng(0)) == 0
    rates.record("vault", 1, [True] * 50 + [False] * 48)  # nearly 1/2, where most can be learned
    rates.record("vault", 2, [True] * 19 + [False] * 79)  # 1/5
    assert shares_of_starts(rates, 2)[0] == pytest.approx(0.16 / 0.25, abs=0.015)
    rates.record("vault", 2, [True] * 20_000)  # more is learned at the beginning of these
    rates.record("vault", 3, [True] * 50 + [False] * 48)
    assert shares_of_starts(rates, 3)[0] == 1.0


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

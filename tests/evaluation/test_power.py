"""How much it takes is enough, and not much more."""

import numpy as np
import pytest
from scipy.special import stdtrit

from ale_jax.evaluation.power import power


def test_power_by_hand():
    # (1.9600 + 0.8416)^2 0.25 / 0.03^2 = 2180.2; Student's t asks for two more.
    found = power(0.25, 500)
    assert found.needed == pytest.approx(2181, abs=3) and found.more == found.needed - 500
    # 2.8049 sqrt(0.25 / 500) with 499 degrees of freedom.
    assert found.shows == pytest.approx(0.0627, abs=1e-4)
    assert power(0.25, 5000).more == 0


def test_a_correction_takes_more_and_no_spread_takes_the_least():
    assert power(0.25, 500, comparisons=3).needed > power(0.25, 500).needed
    assert (power(0.0, 2).needed, power(0.0, 2, least=3).needed) == (2, 3)


@pytest.mark.parametrize("deviation", [0.02, 0.05, 0.4])
def test_students_test_of_as_many_shows_it_in_four_of_five(deviation):
    needed = power(deviation**2, 10).needed
    rng = np.random.default_rng(needed)
    drawn = rng.normal(0.03, deviation, (2000, needed))
    t = drawn.mean(1) / drawn.std(1, ddof=1) * needed**0.5
    shown = float((t > stdtrit(needed - 1, 0.975)).mean())
    assert 0.76 < shown < 0.9, (needed, shown)

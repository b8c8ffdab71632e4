"""Runs of several seeds: the seed is the unit, and the rule says when to stop."""

import pytest

from ale_jax.evaluation.intervals import mean
from ale_jax.evaluation.seeds import Group, compare_seeds
from ale_jax.evaluation.stopping import LOOKS, decided, paired
from ale_jax.evaluation.verdict import Verdict
from tests.evaluation.results import result

ITEMS = 100


def group(name, *solved):
    """One run per number of items that it solves."""
    return Group(
        name,
        tuple(
            result(f"{name}{seed}", ["1"] * count + ["0"] * (ITEMS - count))
            for seed, count in enumerate(solved)
        ),
    )


def test_the_seeds_differences_are_what_counts():
    (found,) = compare_seeds([group("a", 50, 40), group("b", 58, 50)])
    assert found.by_seed == pytest.approx((0.08, 0.1))
    expected = mean(found.by_seed)
    assert found.pass_at_1 == expected and expected.value == pytest.approx(0.09)
    assert found.reason == "the rule looks after 3, 6, 9 seeds, not after 2"


def test_a_look_asks_for_its_level():
    (early,) = compare_seeds([group("a", 50, 40, 45), group("b", 58, 49, 55)])
    # 0.08, 0.09, 0.1: t^2 = 243; with two degrees of freedom, p = 1 - t / sqrt(t^2 + 2).
    assert early.p_value == pytest.approx(1 - (243 / 245) ** 0.5)
    assert early.reason == "the rule asks for p = 0.0005 after 3 seeds"
    assert early.power.needed >= min(LOOKS)
    (late,) = compare_seeds([group("a", *[50, 40, 45] * 2), group("b", *[58, 49, 55] * 2)])
    assert (late.verdict, late.reason) == (Verdict.BETTER, "")
    (worse,) = compare_seeds([group("a", *[58, 49, 55] * 2), group("b", *[50, 40, 45] * 2)])
    assert worse.verdict is Verdict.WORSE


def test_seeds_without_spread_are_no_verdict():
    (found,) = compare_seeds([group("a", 5, 5, 5), group("b", 5, 5, 5)])
    assert (found.p_value, found.verdict) == (1.0, Verdict.CANNOT_TELL)


def test_several_groups_are_corrected():
    three = [group("a", *[50, 40, 45] * 2), group("b", *[58, 49, 55] * 2), group("c", *[50] * 6)]
    found = compare_seeds(three)
    assert [each.second for each in found] == ["b", "c"]
    assert found[0].corrected == pytest.approx(2 * found[0].p_value)


def test_what_a_seed_cannot_pair_is_counted_over_all():
    lost = Group("b", (result("b0", ["1?"] * 9), result("b1", ["1?"] * 9)))
    (found,) = compare_seeds(
        [Group("a", (result("a0", ["10"] * 9), result("a1", ["00"] * 9))), lost]
    )
    assert found.unpaired == {
        "pairs without a verdict of b0": 9,
        "pairs without a verdict of b1": 9,
    }


def test_as_many_runs_are_needed_of_each():
    with pytest.raises(ValueError, match="a has 3 runs and b 2: they are compared seed by seed"):
        compare_seeds([group("a", 1, 2, 3), group("b", 1, 2)])


def test_a_test_without_spread_has_no_p_value_and_decides_nothing():
    assert (paired([0.1, 0.1]).p_value, paired([0.1, 0.1]).error) == (None, 0.0)
    assert decided(None, 3) is None and decided(0.0001, 4) is None
    assert decided(0.0005, 3) is True and decided(0.0006, 3) is False

"""Two results, in pairs."""

import dataclasses

import numpy as np
import pytest

from ale_jax.evaluation.compare import compare
from ale_jax.evaluation.episodes import Result
from ale_jax.evaluation.intervals import difference, mean
from ale_jax.evaluation.pairing import pair
from ale_jax.evaluation.verdict import Verdict
from tests.evaluation.results import result


def compared(first, second):
    (found,) = compare([result("a", first), result("b", second)])
    return found


def test_differences_are_those_of_items():
    found = compared(["11", "10", "00", "1"], ["10", "11", "11", "1"])
    its = found.differences
    assert (its.first, its.second) == ((1 + 0.5 + 0 + 1) / 4, (0.5 + 1 + 1 + 1) / 4)
    assert its.pass_at_1 == difference([-0.5, 0.5, 1.0, 0.0])
    assert its.reward == mean([-0.5, 0.5, 1.0, 0.0])
    assert (its.won, its.lost, found.pairs) == (2, 1, 7)
    # Net wins of -1, 1 and 2: of eight signs, 2 and 4 and their mirrors are at least 2 from 0.
    assert found.p_value == found.corrected == 6 / 8
    assert found.unpaired == {}


def test_a_verdict_is_given_where_chance_is_unlikely():
    better = compared(["0"] * 20 + ["1"] * 20, ["1"] * 12 + ["0"] * 8 + ["1"] * 20)
    assert (better.verdict, better.reason) == (Verdict.BETTER, "")
    assert better.p_value == pytest.approx(2 * 0.5**12)
    worse = compared(["1"] * 12 + ["0"] * 20, ["0"] * 32)
    assert worse.verdict is Verdict.WORSE
    few = compared(["0"] * 5, ["1"] * 5)
    assert (few.verdict, few.reason) == (Verdict.CANNOT_TELL, "the difference may be chance")
    same = compared(["1", "0"], ["1", "0"])
    assert (same.p_value, same.verdict, same.power.more > 0) == (1.0, Verdict.CANNOT_TELL, True)


def test_small_differences_at_few_items_are_no_verdict():
    """Ten items that all gain a sample of 16 say little about one in ten that loses many."""
    found = compared(["0" * 16] * 10, ["1" + "0" * 15] * 10)
    assert found.p_value == pytest.approx(2 * 0.5**10)
    assert found.reason == "so few items may miss those that differ much"


def test_missing_verdicts_are_no_failures_and_may_forbid_a_verdict():
    first, second = ["0"] * 12 + ["1"] * 20, ["1"] * 12 + ["1"] * 20
    lost = compared([*first, *["1"] * 4], [*second, *["?"] * 4])
    assert lost.differences == compared(first, second).differences
    assert lost.unpaired == {"pairs without a verdict of b": 4}
    assert lost.if_lost == ((12 - 4) / 36, 12 / 36) and lost.verdict is Verdict.BETTER
    more = compared([*first, *["1"] * 12], [*second, *["?"] * 12])
    assert more.if_lost == (0.0, 12 / 44)
    assert more.reason == "the missing verdicts may turn it"
    both = compared([*first, "?"], [*second, "?"])
    assert both.if_lost == ((12 - 1) / 33, (12 + 1) / 33)


def test_what_cannot_be_paired_is_counted_by_its_reason():
    one, other = result("a", ["111", "1", "1", "1"]), result("b", ["0", "0", "0"])
    theirs = [
        other.episodes[0],
        dataclasses.replace(other.episodes[1], metadata={"level": 9}),
        dataclasses.replace(other.episodes[2], world_digest="d2"),
        *result("b", {"x": "0", "y": "00"}).episodes,
    ]
    pairs = pair(one, Result("b", tuple(theirs)))
    assert [key[2] for key in pairs.items] == [0]
    assert pairs.unpaired == {
        "items that only a has": 1,
        "items that only b has": 2,
        "samples that only a has": 2,
        "pairs of which the item's metadata differ": 1,
        "pairs of which the world's code or data differ": 1,
    }


def test_results_without_a_common_pair_are_refused_with_the_reason():
    with pytest.raises(ValueError, match=r"a and b have no judged pair in common: 2 items that o"):
        compare([result("a", ["1", "0"]), result("b", {7: "1"})])
    with pytest.raises(ValueError, match=r"2 pairs of which the world's code or data differ"):
        compare([result("a", ["1", "0"]), result("b", ["1", "0"], world_digest="")])
    with pytest.raises(ValueError, match=r"in common: 1 pairs without a verdict of a"):
        compare([result("a", ["?"]), result("b", ["1"])])


def test_several_results_are_compared_with_the_first_and_corrected():
    base, better, same = ["0"] * 6 + ["1"] * 20, ["1"] * 26, ["0"] * 6 + ["1"] * 20
    alone = compared(base, better)
    assert (alone.corrected, alone.verdict) == (2 / 64, Verdict.BETTER)
    found = compare([result("a", base), result("b", better), result("c", same)])
    assert [(each.first, each.second) for each in found] == [("a", "b"), ("a", "c")]
    assert [each.corrected for each in found] == [4 / 64, 1.0]
    assert found[0].verdict is Verdict.CANNOT_TELL
    assert found[0].power.needed > alone.power.needed


def test_families_are_compared_apart_and_the_order_of_episodes_means_nothing():
    def both(name, easy, hard):
        its = [*result(name, easy).episodes, *result(name, hard, family="hard").episodes]
        return Result(name, tuple(np.random.default_rng(0).permutation(np.array(its, object))))

    first, second = both("a", ["1", "0"], ["0", "0"]), both("b", ["1", "1"], ["1", "1"])
    (found,) = compare([first, second])
    assert {name: its.pass_at_1.value for name, its in found.families.items()} == {
        "sums/easy": 0.5,
        "sums/hard": 1.0,
    }
    backwards = [Result(each.name, each.episodes[::-1]) for each in (first, second)]
    assert compare(backwards) == [found]

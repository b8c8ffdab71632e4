"""The bars of worlds and evaluations, and what is said of one that is missed."""

import copy

import pytest

from benchmarks.worlds.__main__ import _missed
from benchmarks.worlds.overhead import step_overhead
from benchmarks.worlds.verdicts import pass_at_k_error, wrong_verdicts

PASSED = {
    "bridges_equal": {"gem": {"exceptions": {"x": "the library alone: FileNotFoundError"}}},
    "items_played": {"episodes": 8, "once": 8},
    "leaks": {"leaks": 0},
    "pass_at_k_error": 1e-16,
    "wrong_verdicts": {"0": {"pairs": 100, "wrong": 5}, "3": {"pairs": 100, "wrong": 0}},
    "sft_rows": {"trajectories": 9, "dropped": {"long": 1}, "used_once": 8, "masks_equal": 8},
}
FAULTS = {
    "bridges_equal": lambda found: found["gem"]["exceptions"].update(y="seed 1, reply 2"),
    "items_played": lambda found: found.update(once=7),
    "leaks": lambda found: found.update(leaks=1),
    "wrong_verdicts": lambda found: found["0"].update(wrong=6),
    "sft_rows": lambda found: found.update(used_once=7),
}


def test_verdicts_and_pass_at_k_are_right():
    assert pass_at_k_error(3) < 1e-12
    found = wrong_verdicts(24)
    assert found["0"]["wrong"] <= 3 and found["10"]["right"] >= 6
    assert found["3"]["wrong"] == found["10"]["wrong"] == 0


def test_the_interface_of_a_world_takes_some_time():
    for cost in step_overhead().values():
        assert 1 < cost.ratio == pytest.approx(cost.played_us / cost.bare_us, rel=0.01)


@pytest.mark.parametrize("name", FAULTS)
def test_a_missed_bar_is_named(name):
    assert _missed(PASSED) == []
    found = copy.deepcopy(PASSED)
    FAULTS[name](found[name])
    assert _missed(found) == [name]
    assert _missed(PASSED | {"pass_at_k_error": 1e-11}) == ["pass_at_k_error"]

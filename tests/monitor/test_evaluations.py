"""Success rates with honest intervals."""

import dataclasses

import pytest

from ale_jax.monitor.evaluations import (
    EVALS_DIR,
    EVALUATIONS_FILE,
    FamilyResult,
    cut_evaluations,
    read_evaluations,
    record_evaluation,
    wilson_interval,
    write_evaluations,
)
from tests.monitor.fake_run import EVALUATIONS


@pytest.mark.parametrize(
    ("successes", "tasks", "low", "high"),
    [
        # z = 1.96. Half of 10: centre 0.5, half-width z sqrt(0.025 + z^2/400) / (1 + z^2/10).
        (5, 10, 0.2366, 0.7634),
        # None of 10: [0, z^2 / (10 + z^2)] = 3.8415 / 13.8415; and its mirror.
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        # One of one: [1 / (1 + z^2), 1].
        (1, 1, 0.2065, 1.0),
        (0, 0, 0.0, 1.0),
    ],
)
def test_wilson_interval(successes, tasks, low, high):
    assert wilson_interval(successes, tasks) == pytest.approx((low, high), abs=1e-4)


def test_evaluations_come_back_equal(tmp_path):
    write_evaluations(tmp_path, EVALUATIONS)
    assert read_evaluations(tmp_path / EVALUATIONS_FILE) == EVALUATIONS


def test_an_evaluation_made_again_replaces_the_first(tmp_path):
    for evaluation in (*EVALUATIONS, dataclasses.replace(EVALUATIONS[0], step=99)):
        record_evaluation(tmp_path, evaluation)
    found = [(e.name, e.step) for e in read_evaluations(tmp_path / EVALUATIONS_FILE)]
    assert found == [("final", 160), ("warm_start", 99)]


@pytest.mark.parametrize(
    ("step", "kept"),
    [(20, ["warm_start", "step_20"]), (30, ["warm_start", "step_20", "step_30"]), (None, [])],
)
def test_a_run_that_goes_on_keeps_no_evaluation_that_it_makes_again(tmp_path, step, kept):
    """Also not that of its end, after which it was made longer."""
    steps = {"warm_start": 0, "step_20": 20, "step_30": 30, "final": 30}
    made = [dataclasses.replace(EVALUATIONS[0], name=n, step=s) for n, s in steps.items()]
    write_evaluations(tmp_path, made)
    for name in steps:
        (tmp_path / EVALS_DIR / name).mkdir(parents=True)
    cut_evaluations(tmp_path, step)
    assert sorted(folder.name for folder in (tmp_path / EVALS_DIR).iterdir()) == sorted(kept)
    assert [e.name for e in read_evaluations(tmp_path / EVALUATIONS_FILE)] == kept


def test_a_run_without_evaluations_has_none_to_lose(tmp_path):
    cut_evaluations(tmp_path, 20)
    assert not (tmp_path / EVALUATIONS_FILE).exists()


def test_totals_keep_held_out_families_apart():
    assert EVALUATIONS[0].total(held_out=False) == FamilyResult(23, 120, False, 23 / 120)
    assert EVALUATIONS[0].total(held_out=True) == FamilyResult(5, 40, True, 0.125)
    assert EVALUATIONS[0].judged == 160


def test_more_successes_than_tasks_are_refused():
    with pytest.raises(ValueError, match="4 successes out of 3"):
        FamilyResult(4, 3, False, 4 / 3)


@pytest.mark.parametrize("content", ["{}x", '{"name": 1}', "[1]", '[{"name": "a"}]', "3"])
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / EVALUATIONS_FILE).write_text(content)
    with pytest.raises(ValueError, match=EVALUATIONS_FILE):
        read_evaluations(tmp_path / EVALUATIONS_FILE)

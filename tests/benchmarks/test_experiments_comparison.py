"""Arms of an experiment, compared seed by seed."""

import dataclasses

import pytest

from benchmarks.experiments.__main__ import result
from benchmarks.experiments.catalogue import LATE
from benchmarks.experiments.comparison import compare, table
from benchmarks.experiments.figures import read_run, summarize
from benchmarks.experiments.runs import Runs
from tests.benchmarks.finished_run import write_run

pytestmark = pytest.mark.slow


def test_arms_are_compared_seed_by_seed(tmp_path):
    def run(seed, *curve):
        write_run(folder := tmp_path / f"{seed}-{curve[0]}", seed, 1)
        points = tuple((number, success) for number, success in enumerate(curve))
        return dataclasses.replace(read_run(folder), seed=seed, curve=points)

    ours = [run(0, 0.2, 0.4), run(1, 0.5, 0.7), run(2, 0.9, 0.9)]
    theirs = [run(1, 0.1, 0.3), run(0, 0.3, 0.1), run(7, 0.0, 0.0)]
    # By seed 0 and 1: 0.3 - 0.2 and 0.6 - 0.2.
    found = compare(ours, theirs, "area")
    assert found["paired_difference"] == pytest.approx(0.25)
    assert found["paired_error"] == pytest.approx(0.15)
    assert set(compare(ours[:1], theirs, "area").values()) == {None}
    better = [dataclasses.replace(run, final=run.final + 0.125) for run in ours]
    found = compare(better, ours, "final")
    assert (found["paired_difference"], found["paired_error"]) == (0.125, 0.0)


def test_an_experiment_ends_at_a_look_that_is_convincing(tmp_path):
    write_run(tmp_path / "run", 0, 1)
    run = read_run(tmp_path / "run")

    def verdict(*gains):
        ours = [dataclasses.replace(run, seed=k, final=gain) for k, gain in enumerate(gains)]
        theirs = [dataclasses.replace(run, seed=k, final=0.0) for k in range(len(gains))]
        return compare(ours, theirs, "final")

    few = verdict(0.08, 0.09, 0.10)
    # t^2 = 243; with two degrees of freedom, p = 1 - t / sqrt(t^2 + 2).
    assert few["p_value"] == pytest.approx(1 - (243 / 245) ** 0.5, rel=1e-3)
    assert few["decided"] is False  # 0.004, of which the first look asks for 0.0005
    assert verdict(0.1, 0.1001, 0.1002)["decided"] is True
    assert verdict(0.08, 0.09, 0.10, 0.09)["decided"] is None
    assert verdict(*[0.08, 0.09, 0.10] * 2)["decided"] is True
    assert verdict(*[0.1, -0.1, 0.05] * 3)["decided"] is False


def test_a_row_has_the_figures_of_an_arm_in_percent(tmp_path):
    for seed, solved in ((0, 20), (1, 24)):
        write_run(tmp_path / str(seed), seed, solved)
    runs = [read_run(tmp_path / str(seed)) for seed in (0, 1)]
    nothing, itself = compare(runs[:1], runs, "final"), compare(runs, runs, "final")
    ahead = {"paired_difference": 0.114, "paired_error": 0.008, "p_value": 1e-5, "decided": True}
    behind = {"paired_difference": -0.05, "paired_error": 0.1, "p_value": 0.6, "decided": False}

    def last_row(less_grpo, less_ppo):
        arm = {**summarize(runs), **less_grpo, "against": {"ppo": less_ppo}}
        found = {"arms": {"ipa": arm}, "reference": "grpo", "statistic": "area"}
        heads, _, row = (line.strip("| ").split(" | ") for line in table(found).splitlines())
        return dict(zip(heads, row, strict=True))

    row = last_row(ahead, behind)
    assert row.pop("minutes a run") == "13.5"
    assert row == {
        "arm": "ipa",
        "final success, mean ± std": "55.0 ± 7.1",
        "by seed": "50.0, 60.0",
        "after the warm start": "25.0, 25.0",
        "area less grpo": "+11.4 ± 0.8 (decided)",
        "area less ppo": "-5.0 ± 10.0",
        "spikes": "0",
        "collapsed": "0 of 2",
        "mean age": "0.35",
    }
    row = last_row(nothing, itself)
    assert (row["area less grpo"], row["area less ppo"]) == ("", "")


def test_arms_are_compared_with_the_reference_and_with_each_rival(tmp_path):
    write_run(tmp_path / "run", 0, 1)
    run = read_run(tmp_path / "run")
    areas = {"turn_topr": (0.55, 0.59), "grpo": (0.4, 0.5), "ppo": (0.35, 0.35)}
    known = {
        name: {k: dataclasses.replace(run, seed=k, curve=((8, area),)) for k, area in enumerate(of)}
        for name, of in areas.items()
    }
    found = result(LATE, Runs(tmp_path / "none", quick=False), known)
    arm = found["arms"]["turn_topr"]
    assert (found["reference"], list(arm["against"])) == ("grpo", ["ppo"])
    assert arm["paired_difference"] == pytest.approx(0.12)  # 0.15 and 0.09
    assert arm["against"]["ppo"]["paired_difference"] == pytest.approx(0.22)  # 0.20 and 0.24
    assert arm["against"]["ppo"]["paired_error"] == pytest.approx(0.02)

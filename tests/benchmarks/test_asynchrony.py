"""The benchmark of asynchrony compares the schedules that it names, and counts what it says."""

import json

import pytest

from benchmarks.asynchrony import __main__ as asynchrony
from benchmarks.asynchrony import elastic, simulated

pytestmark = pytest.mark.slow


def _found(capsys, tmp_path, only):
    out = tmp_path / "asynchrony.json"
    assert asynchrony.main(["--quick", f"--only={only}", f"--out={out}"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found == json.loads(out.read_text())
    return found


def test_it_prints_what_each_schedule_brings(tmp_path, capsys):
    found = _found(capsys, tmp_path, "simulated")
    assert found.pop("event_cpu_us") > 0 and found.pop("steps_kept") == 2000
    assert found.pop("queue_sim") > 1.0
    assert found.keys() == simulated.CASES.keys()
    assert 2.0 < found["agentic_sim"] < 2.58  # which is the ideal
    assert found["tail_sim"] > 2.0 and found["redundancy_sim"] > 1.0


def test_devices_that_change_sides_are_compared_with_those_that_do_not(tmp_path, capsys):
    found = _found(capsys, tmp_path, "elastic")
    assert found.keys() == {
        *("elastic_over_split_sim", "elastic_over_colocated_sim", "elastic_bound_sim"),
        "elastic_schedules",
    }
    assert found["elastic_schedules"].keys() == elastic.SCHEDULES.keys()
    first = found["elastic_schedules"]["alpha 1, drop"]
    assert first["over_split"] == found["elastic_over_split_sim"] > 0.5


@pytest.mark.heavy
def test_real_runs_say_what_redundancy_brings_and_costs(tmp_path, capsys):
    found = _found(capsys, tmp_path, "redundancy")
    assert found["redundancy_real"] > 0
    # A group of three is dropped in each step, and nothing else is.
    assert 0 < max(found["drop_rates"].values()) < 1 and min(found["drop_rates"].values()) >= 0
    assert found["planner_errors"].keys() == {"redundancy, 36 x 9"}
    assert found["planner_error_max"] == abs(found["planner_errors"]["redundancy, 36 x 9"])


@pytest.mark.heavy
def test_engines_of_one_process_wait_for_their_dispatches(tmp_path, capsys):
    found = _found(capsys, tmp_path, "scaling")
    assert found["dispatch_cpu_ms"] > 0.0
    assert 7.0 < found["scaling_8_sim"] <= 8.2
    assert found["scaling_8_one_process_sim"] < found["scaling_8_sim"]

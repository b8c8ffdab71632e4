"""The benchmark of asynchrony compares the schedules that it names, and counts what it says."""

import json

import pytest

from benchmarks import asynchrony

pytestmark = pytest.mark.slow


def test_it_prints_what_each_schedule_brings(tmp_path, capsys):
    out = tmp_path / "asynchrony.json"
    assert asynchrony.main(["--quick", f"--out={out}"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found == json.loads(out.read_text())
    assert found.pop("event_cpu_us") > 0 and found.pop("steps_kept") == 2000
    assert found.pop("queue_sim") > 1.0
    assert found.keys() == asynchrony.CASES.keys()
    assert 2.0 < found["agentic_sim"] < 2.58  # which is the ideal
    assert found["tail_sim"] > 2.0 and found["redundancy_sim"] > 1.0

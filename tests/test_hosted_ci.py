"""The hosted CI runs the same checks as everybody: .ci/run, for every push and pull request."""

from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
WORKFLOW = yaml.load((ROOT / ".github/workflows/ci.yml").read_text(), yaml.BaseLoader)
JOB = WORKFLOW["jobs"]["run"]
STEPS = JOB["steps"]


def test_a_push_and_a_pull_request_call_the_script_and_nothing_else_decides():
    assert set(WORKFLOW["on"]) == {"push", "pull_request"}
    assert STEPS[-1] == {"run": ".ci/run"}
    assert (ROOT / ".ci/run").stat().st_mode & 0o100


def test_the_kept_programs_are_those_of_the_tests():
    kept = next(step["with"]["path"] for step in STEPS if "cache" in step.get("uses", ""))
    assert "~/.cache/ale-jax/tests" in kept.split()
    assert '"~/.cache/ale-jax/tests"' in (ROOT / "tests/conftest.py").read_text()


def test_the_locked_versions_are_tried_and_the_newest_ones():
    assert JOB["strategy"]["matrix"]["lock"] == ["requirements.lock", ""]
    assert JOB["env"] == {"LOCK": "${{ matrix.lock }}"}, "which make reads"
    assert JOB["continue-on-error"] == "${{ !matrix.lock }}"


def test_no_step_may_write_to_the_repository():
    assert WORKFLOW["permissions"] == {"contents": "read"}

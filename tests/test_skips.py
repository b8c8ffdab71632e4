"""On a machine that was made complete, a test that lacks something does not pass for a skip."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[1]
# Without colours, whatever the environment asks for (FORCE_COLOR, PYTEST_ADDOPTS).
PYTEST = [sys.executable, "-m", "pytest", "--color=no", "-p", "tests.conftest", "test_some.py"]
TESTS = """
import pytest

def test_lacks_a_runtime():
    pytest.skip("docker: no daemon answers; type: make runtimes")

@pytest.mark.skipif(True, reason="bwrap is not installed; type: apt-get install bubblewrap")
def test_lacks_another():
    pass

def test_is_about_the_other_runtime():
    pytest.skip("images are Docker's")

@pytest.mark.xfail(strict=True)
def test_is_known_to_fail():
    assert False
"""

MANY = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_lacks_a_runtime(number):
    pytest.skip("docker: no daemon answers; type: make runtimes")

def test_lacks_something_else():
    pytest.skip("other")
"""


@pytest.mark.parametrize(
    ("setting", "outcome"),
    [("fail", "1 failed, 1 skipped, 1 xfailed, 1 error"), ("", "3 skipped, 1 xfailed")],
)
def test_what_is_missing_fails_where_nothing_may_be_missing(setting, outcome, tmp_path):
    (tmp_path / "test_some.py").write_text(TESTS)
    done = subprocess.run(
        PYTEST,
        cwd=tmp_path,
        env=os.environ | {"ALE_SKIPS": setting, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert outcome in done.stdout, done.stdout
    assert "type: make runtimes" in done.stdout


def test_a_reason_is_one_line_however_many_tests_it_skips(tmp_path):
    (tmp_path / "test_some.py").write_text(MANY)
    env = os.environ | {"ALE_SKIPS": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(PYTEST, cwd=tmp_path, env=env, capture_output=True, text=True)
    said = [line for line in done.stdout.splitlines() if line.startswith("skipped")]
    assert said == ["skipped 3: docker: no daemon answers; type: make runtimes", "skipped 1: other"]

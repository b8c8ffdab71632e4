"""Tests are played in tiers: who starts a process says so, and the parts of a tier make it up."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import part_of_files

ROOT = Path(__file__).parents[1]
TESTS = """
import socket
import subprocess
import pytest

@pytest.fixture
def runtime():
    subprocess.run(["true"])

@pytest.fixture(scope="module")
def server():
    subprocess.run(["true"])

def test_starts_nothing():
    pass

def test_starts_unsaid():
    subprocess.run(["true"])

def test_asks_docker():
    with socket.socket(socket.AF_UNIX) as asked, pytest.raises(OSError):
        asked.connect("absent/docker.sock")

@pytest.mark.heavy
def test_starts_as_said():
    subprocess.run(["true"])

@pytest.mark.slow
def test_takes_its_time():
    subprocess.run(["true"])

def test_needs_a_runtime(runtime):
    pass

def test_needs_a_server(server):
    pass

def test_needs_the_same_server(server):
    pass
"""
OTHER = """
import pytest

@pytest.fixture
def server():
    pass

def test_needs_another_server(server):
    pass
"""
UNSAID = {
    "test_starts_unsaid",
    "test_asks_docker",
    "test_needs_a_server",
    "test_needs_the_same_server",
}
pytestmark = pytest.mark.heavy


def play(folder: Path, *options: str) -> str:
    """Returns what pytest reports about TESTS, one line for each test that it plays."""
    (folder / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "--color=no", "-v", "-p", "tests.tiers"]
    done = subprocess.run(
        [*command, "-W", "ignore::pytest.PytestUnknownMarkWarning", "test_some.py", *options],
        cwd=folder,
        # With CI set, pytest's summary repeats whole messages, and they would be counted twice.
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": "", "CI": ""},
        capture_output=True,
        text=True,
    )
    return done.stdout


def test_what_starts_a_process_says_so_or_fails(tmp_path):
    said = play(tmp_path)
    assert said.count("mark it `heavy`") == 4
    assert all(f"{test} FAILED" in said for test in UNSAID)
    assert "4 failed, 4 passed" in said


@pytest.mark.parametrize(
    ("marks", "played"),
    [
        ("not slow and not heavy", {"test_starts_nothing"} | UNSAID),
        ("heavy", {"test_starts_as_said", "test_needs_a_runtime"}),
        ("slow", {"test_takes_its_time"}),
    ],
)
def test_a_tier_is_chosen_by_marks_and_runtimes_are_heavy(marks, played, tmp_path):
    lines = play(tmp_path, "-m", marks).splitlines()
    said = [line.split("::")[1] for line in lines if line.startswith("test_some.py::")]
    assert {name.split()[0] for name in said} == played


def test_a_fixture_of_the_same_name_elsewhere_is_another(tmp_path):
    (tmp_path / "test_another.py").write_text(OTHER)
    assert "test_needs_another_server PASSED" in play(tmp_path, "test_another.py")


def test_all_parts_together_are_every_file_once():
    files = {Path(f"tests/test_{name}.py") for name in "abcdefghij"}
    parts = [part_of_files(files, number, 4) for number in range(4)]
    assert set.union(*parts) == files and sum(map(len, parts)) == len(files)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    with pytest.raises(ValueError, match="part 4 of 4 does not exist"):
        part_of_files(files, 4, 4)


def test_files_of_other_parts_are_left_out(tmp_path):
    assert "8 deselected" in play(tmp_path, "--part=1/2")
    assert "deselected" not in play(tmp_path, "--part=0/2")

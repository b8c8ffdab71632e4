"""A test run that is killed leaves no process behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.left_processes import marked

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[1]
# One that left our session, with a child of its own; and one that was stopped in the middle.
HANGS = """
import os, signal, subprocess, time

def test_that_starts_processes_and_hangs():
    session = subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo $! > child; wait"], start_new_session=True
    )
    stopped = subprocess.Popen(["sleep", "600"])
    stopped.send_signal(signal.SIGSTOP)
    while not (os.path.exists("child") and open("child").read()):
        time.sleep(0.01)
    with open("started", "w") as file:
        file.write(f"{session.pid} {stopped.pid} {open('child').read()}")
    os.rename("started", "all_started")
    time.sleep(600)
"""


def exists(pid):
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def wait_until(condition):
    deadline = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def test_all_that_a_killed_run_has_started_ends_with_it(tmp_path):
    (tmp_path / "test_some.py").write_text(HANGS)
    started = tmp_path / "all_started"
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "test_some.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: started.exists() or run.poll() is not None)
        pids = [int(pid) for pid in started.read_text().split()]
        assert len(pids) == 3 and all(map(exists, pids))
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    wait_until(lambda: not any(map(exists, pids)))


def test_the_processes_of_another_run_are_not_ours(monkeypatch):
    monkeypatch.setenv("ALE_TESTS_OTHER", "1")
    with subprocess.Popen(["sleep", "600"]) as other:
        assert marked("ALE_TESTS_OTHER") == {other.pid}
        assert marked("ALE_TESTS_OTHE") == marked("ALE_TESTS_OTHERS") == set()
        other.kill()

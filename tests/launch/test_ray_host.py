"""launch/ray_host.py: a process of training on one host, without Ray."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ray_host import LOST, Host, Job, begins_again, environment, is_lost

from tests.rows import each_row

pytestmark = pytest.mark.heavy

LAUNCH = Path(__file__).parents[2] / "launch"
DEADLINE_S = 60.0  # only against a hang
JOB = Job("2x2x2", "TPU-V4", slices=2, hosts=2, port=8476, arguments=("--config=a", "b c"))
# Writes a line to `told` for each SIGTERM, and ends once there is one and a file `saved`.
SLOW_TO_SAVE = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
told = (folder / "told").open("a", buffering=1)
signal.signal(signal.SIGTERM, lambda *_: told.write("told\\n"))
print("ready", flush=True)
while not (told.tell() and (folder / "saved").exists()):
    time.sleep(0.01)
print("saved", flush=True)
(folder / "ended").touch()
sys.exit(130)
"""
# An actor, for what it is about here: a process that is killed.
OWNER = """
import sys
from ray_host import Host
host = Host(".", sys.argv[1:], {})
while not host.look(0)[0]:
    pass
print("begun", flush=True)
sys.stdin.read()
"""


def output_of(host):
    """What it has written when it has ended, and its exit code."""
    deadline = time.monotonic() + DEADLINE_S
    while (found := host.look(0))[1] is None:
        assert time.monotonic() < deadline
    return found


def wait_until(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_line_says_which_process_it_is():
    line = [".venv/bin/python", "-m", "ale_jax.launch", "--config=a", "b c"]
    assert JOB.line(3, "10.0.0.1") == [
        *line,
        "--coordinator=10.0.0.1:8476",
        "--processes=4",
        "--process=3",
    ]
    assert [JOB.place(number) for number in range(JOB.processes)] == [
        "slice 0, worker 0",
        "slice 0, worker 1",
        "slice 1, worker 0",
        "slice 1, worker 1",
    ]


def test_variables_of_slices_that_are_gone_are_overwritten_and_others_are_kept():
    stale = {
        "MEGASCALE_COORDINATOR_ADDRESS": "10.9.9.9",
        "MEGASCALE_PORT": "9",
        "MEGASCALE_NUM_SLICES": "3",
        "MEGASCALE_SLICE_ID": "2",
    }
    kept = {"TPU_WORKER_ID": "1", "MEGASCALE_GRPC_PREMAP_MEMORY_BYTES": "7"}
    of_ray = {"RAY_JOB_ID": "1", "RAY_RAYLET_PID": "1", "TPU_VISIBLE_CHIPS": "0,1,2,3"}
    host = stale | kept | of_ray
    assert environment(host, JOB.multislice(3, "10.0.0.1")) == kept | {
        "MEGASCALE_COORDINATOR_ADDRESS": "10.0.0.1",
        "MEGASCALE_PORT": "8081",
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_SLICE_ID": "1",
    }
    one_slice = Job("2x2x2", "TPU-V4", slices=1, hosts=2, port=8476, arguments=())
    assert environment(host, one_slice.multislice(1, "10.0.0.1")) == kept


@each_row(
    "codes, again",
    [
        ((0, 0), False),
        ((0, LOST), False),  # it is done
        ((130, 130), True),
        ((2, LOST), True),
        ((2, 137), True),
        ((LOST, 2), True),
        ((2, 2), False),  # all hosts are alive, so it was refused
        ((1, 2), False),
        ((2, 1), False),
        ((1, LOST), False),
        ((127, 127), False),  # nothing is installed there
    ],
)
def test_the_same_line_runs_again_after_a_loss_and_not_after_a_mistake(codes, again):
    assert begins_again(codes) is again


@each_row(
    "code, lost",
    [(LOST, True), (-9, True), (137, True), (143, True), (130, False), (2, False), (127, False)],
)
def test_who_was_killed_was_lost(code, lost):
    assert is_lost(code) is lost


def test_a_process_runs_in_its_folder_with_its_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("MEGASCALE_NUM_SLICES", "3")
    script = (
        "import json, os, sys; print(json.dumps([os.getcwd(), sys.argv[1:], dict(os.environ)]))"
    )
    words = ["--config.name=it's", "$(touch stolen)", "two\nlines"]
    host = Host(str(tmp_path), [sys.executable, "-c", script, *words], {"MEGASCALE_SLICE_ID": "1"})
    printed, code = output_of(host)
    folder, arguments, variables = json.loads(printed)
    assert (folder, arguments, code) == (str(tmp_path), words, 0)
    assert variables["MEGASCALE_SLICE_ID"] == "1" and "MEGASCALE_NUM_SLICES" not in variables
    assert host.look(5)[0] == printed[5:]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("line", "code"),
    [(["sh", "-c", "exit 2"], 2), (["sh", "-c", "kill -9 $$"], 137), (["no"], 127)],
)
def test_its_exit_code_is_told(line, code):
    assert output_of(Host(".", line, {}))[1] == code


def test_a_folder_that_is_missing_is_a_mistake_and_not_a_loss(tmp_path):
    printed, code = output_of(Host(f"{tmp_path}/none", ["true"], {}))
    assert b"none" in printed and code not in (0, 130) and not is_lost(code)


def test_it_gets_sigterm_once_however_often_it_is_stopped(tmp_path):
    host = Host(".", [sys.executable, "-c", SLOW_TO_SAVE, str(tmp_path)], {})
    wait_until(lambda: host.look(0)[0] == b"ready\n")
    host.stop()
    wait_until(lambda: (tmp_path / "told").read_text())
    host.stop()
    host.look(0)
    (tmp_path / "saved").touch()
    assert output_of(host) == (b"ready\nsaved\n", 130)
    assert (tmp_path / "told").read_text() == "told\n"


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_it_may_save_when_its_owner_is_killed_with_all_of_its_group_and_children(tmp_path, sign):
    """Ray kills the children of a worker that ends, and the group of one that was killed."""
    line = [sys.executable, "-c", OWNER, sys.executable, "-c", SLOW_TO_SAVE, str(tmp_path)]
    owner = subprocess.Popen(
        line,
        env=os.environ | {"PYTHONPATH": str(LAUNCH)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert owner.stdout.readline() == b"begun\n"
    (child,) = Path(f"/proc/{owner.pid}/task/{owner.pid}/children").read_text().split()
    os.kill(int(child), sign)
    os.killpg(owner.pid, sign)
    owner.communicate(timeout=DEADLINE_S)
    wait_until(lambda: (tmp_path / "told").read_text())
    (tmp_path / "saved").touch()
    wait_until((tmp_path / "ended").exists)
    assert (tmp_path / "told").read_text() == "told\n"

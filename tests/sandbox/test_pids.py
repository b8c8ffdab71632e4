"""The limit on processes holds for those that the runner starts, too."""

import dataclasses
import os

import pytest

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.blocking import wait_for
from tests.sandbox.conftest import SPEC
from tests.sandbox.runner_view import open_files

pytestmark = pytest.mark.each_runtime

PIDS = 8
NO_ROOM = "Resource temporarily unavailable"
# With the session, they are one less than there may be.
THREADS = f"""
import threading, time
for _ in range({PIDS} - 3):
    threading.Thread(target=time.sleep, args=(99,)).start()
print("there", flush=True)
"""


@pytest.fixture(scope="module")
def shared_small_box(runtime):
    with runtime.start(dataclasses.replace(SPEC, pids=PIDS), {"run": "tests"}) as sandbox:
        yield sandbox


@pytest.fixture
def small_box(shared_small_box):
    shared_small_box.reset()
    return shared_small_box


def alive(box):
    return wait_for(box.later.stats()).processes


def fill(box):
    """Opens sessions until there is room for no more, and returns their names."""
    names = []
    with pytest.raises(SandboxError, match=f"cannot open: {NO_ROOM}"):
        for number in range(2 * PIDS):
            box.open_session(f"s{number}")
            names.append(f"s{number}")
    return names


@pytest.mark.heavy
def test_no_more_sessions_are_opened_than_processes_may_live(small_box):
    small_box.run("x=3")
    names = fill(small_box)
    assert PIDS - 2 <= len(names) < PIDS  # on some hosts, the runner counts as one
    assert alive(small_box) <= PIDS
    assert small_box.run("echo $x").output == "3\n"  # the others stay as they are
    small_box.close_session(names[0])
    small_box.open_session("late")
    assert small_box.run("echo here", session="late").output == "here\n"


def test_a_process_without_room_is_refused_and_started_when_there_is_some(small_box):
    names = fill(small_box)
    with pytest.raises(SandboxError, match=f"cannot start a process: {NO_ROOM}"):
        small_box.exec(["true"])
    for name in names[:3]:
        small_box.close_session(name)
    assert small_box.exec(["echo", "here"]).stdout == "here\n"


def test_files_can_be_packed_and_unpacked_whatever_the_agent_leaves(small_box):
    small_box.write({"a.txt": b"here"})
    fill(small_box)
    archive = wait_for(small_box.later.pack("/work"))
    wait_for(small_box.later.unpack(archive, "/tmp"))
    assert small_box.read("/tmp/a.txt") == b"here"


def test_threads_count(small_box):
    small_box.write({"threads.py": THREADS.encode(), "said": b""})
    small_box.run("python3 threads.py > said &")
    while small_box.read("said") != b"there\n":
        pass
    assert alive(small_box) == 2
    assert len(fill(small_box)) <= 1


def test_a_session_that_ended_is_opened_again_whatever_else_runs(small_box):
    small_box.run("true")
    fill(small_box)
    small_box.run("exit 3")
    small_box.open_session("last")  # takes the place
    assert small_box.run("echo here").output == "here\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root sees a runner's descriptors")
def test_what_is_refused_leaves_no_descriptor(small_box):
    fill(small_box)
    before = open_files(small_box)
    for refused in (
        lambda: small_box.open_session("more"),
        lambda: small_box.exec(["true"]),
    ):
        with pytest.raises(SandboxError, match=NO_ROOM):
            refused()
    assert open_files(small_box) == before

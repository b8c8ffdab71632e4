"""Requests that the host refuses, and that the runner refuses and survives if they come anyway."""

import subprocess
import sys

import pytest

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.blocking import wait_for
from benchmarks.sandbox.host_view import host_pids
from tests.rows import each_row
from tests.sandbox.runner_view import tell

JOB = {"job": "job", "cwd": "/work", "env": {}, "timeout": None, "terminal": None}
JOB |= {"script": None, "user": ""}
# A child that comes back from `fork` prints, too.
ENDING_CHILDREN = """
from ale_jax.sandbox.runner import kernel
def interrupted():
    raise KeyboardInterrupt
for begin in (interrupted, lambda: [][0], lambda: None):
    kernel.fork(begin)
    print("here", flush=True)
"""
# Both list all processes for a second, and say whether they always found this one.
LISTING_CHILD = r"""
import os, time
from ale_jax.sandbox.runner import kernel
runner = os.getpid()
assert runner in kernel.living()
end = time.monotonic() + 1
def list_all():
    found = True
    while time.monotonic() < end:
        found &= runner in kernel.living()
    os.write(1, b"found\n" if found else b"missed\n")  # whole, unlike what print writes
child = kernel.fork(list_all)
list_all()
os.waitpid(child, 0)
"""


def test_a_process_without_words_is_refused(box):
    with pytest.raises(ValueError, match="at least one word"):
        box.exec([])
    assert box.exec("echo alive").stdout == "alive\n"


@pytest.mark.heavy
@pytest.mark.each_runtime
def test_a_runner_that_is_asked_for_a_process_without_words_stays_the_only_one(own_box):
    before = host_pids(own_box.later)
    with pytest.raises(SandboxError, match="at least one word"):
        tell(own_box, "exec", argv=[], output_bytes=100, **JOB)
    assert host_pids(own_box.later) == before
    assert own_box.exec("echo alive").stdout == "alive\n"


@pytest.mark.heavy
def test_no_child_goes_on_as_its_parent_whatever_it_raises():
    line = [sys.executable, "-c", ENDING_CHILDREN]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("here\n" * 3, 0)


@pytest.mark.heavy
def test_a_process_and_its_child_may_list_all_processes_at_once():
    line = [sys.executable, "-c", LISTING_CHILD]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("found\n" * 2, 0)


@each_row("port", [0, -1, 65536, 70_000])
def test_a_port_that_does_not_exist_is_refused(box, port):
    for call in (
        lambda: box.relay(port, "127.0.0.1", 9).__enter__(),
        lambda: wait_for(box.later.tunnel(port).__aenter__()),
        lambda: wait_for(box.later.connect(port)),
    ):
        with pytest.raises(ValueError, match=f"port {port} must be"):
            call()
    assert box.run("echo alive").output == "alive\n"


@each_row("port", [0, -1, 65536, 70_000])
def test_a_runner_survives_a_port_that_does_not_exist(box, port):
    for do in ("listen", "connect"):
        with pytest.raises(SandboxError, match=f"port {port} must be"):
            tell(box, do, port=port)
    assert box.run("echo alive").output == "alive\n"


def test_a_runner_survives_numbers_that_the_kernel_does_not_take(box):
    async def talk():
        job = box.later.spawn("echo ready; sleep 60", terminal=(30, 100))
        assert await job.receive() == ("stdout", b"ready\r\n")
        for ask in (lambda: job.resize(70_000, 1), lambda: job.signal(1 << 70)):
            with pytest.raises(SandboxError, match="cannot"):
                await ask()
        await job.kill()
        return await job.wait()

    assert wait_for(talk()) == 137

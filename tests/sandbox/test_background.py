"""Jobs: processes that go on without a caller."""

import asyncio

import pytest

from ale_jax.sandbox.api import SandboxError, SandboxLost
from ale_jax.sandbox.background import MAX_JOBS, MAX_KEPT
from ale_jax.sandbox.blocking import wait_for
from tests.sandbox.conftest import SPEC, processes


@pytest.mark.each_runtime
def test_a_job_goes_on_and_is_come_back_to(box):
    box.start_job(
        "build",
        "echo out; echo err >&2; cat; until [ -e go ]; do sleep 0.01; done; exit 3",
        stdin=b"in\n",
    )
    while (running := box.job("build")).stdout != "out\nin\n":
        pass
    assert (running.name, running.exit_code, running.stderr) == ("build", None, "err\n")
    assert box.jobs() == ["build"] and box.run("touch go; echo main").output == "main\n"
    ended = box.job("build", seconds=60)
    assert (ended.stdout, ended.stderr, ended.exit_code) == ("out\nin\n", "err\n", 3)
    assert box.job("build") == ended and box.jobs() == ["build"]
    box.end_job("build")
    with pytest.raises(SandboxError, match="there is no job 'build'"):
        box.job("build")


def test_its_end_kills_what_it_has_started(box):
    box.start_job("server", "sleep 1000 & sleep 1000")
    assert box.job("server").exit_code is None
    box.end_job("server")
    assert box.jobs() == [] and "sleep" not in processes(box)


def test_of_a_flood_head_and_tail_are_kept(box):
    box.start_job("flood", "echo first; yes | head -c 3000000; echo last")
    ended = box.job("flood", seconds=60)
    kept = min(SPEC.output_bytes, MAX_KEPT)
    assert ended.stdout.startswith("first\n") and ended.stdout.endswith("last\n")
    assert ended.omitted_bytes == 3_000_011 - kept and ended.exit_code == 0


def test_a_job_has_a_time_limit_only_if_asked_for(box):
    box.start_job("late", "echo x; sleep 1000", timeout=0.2)
    ended = box.job("late", seconds=60)
    assert (ended.exit_code, ended.timed_out, ended.stdout) == (124, True, "x\n")


def test_a_name_is_given_once(box):
    with pytest.raises(ValueError, match="at least one word"):
        box.start_job("x", [])
    box.start_job("x", "exit 4")
    with pytest.raises(SandboxError, match="job 'x' exists already"):
        box.start_job("x", "true")
    assert box.jobs() == ["x"] and box.job("x", seconds=60).exit_code == 4


def test_their_number_is_bounded_also_when_they_have_ended(box):
    for number in range(MAX_JOBS):
        box.start_job(f"{number}", "true")
    with pytest.raises(SandboxError, match=f"there are {MAX_JOBS} jobs: end one"):
        box.start_job("more", "true")
    box.end_job("0")
    box.start_job("more", "echo more")
    assert box.job("more", seconds=60).stdout == "more\n"


@pytest.mark.parametrize("renews", ["reset", "renew", "restore"])
def test_no_job_is_left_when_the_sandbox_is_as_new(box, renews):
    box.start_job("old", "echo secret; sleep 1000")
    box.restore(box.snapshot()) if renews == "restore" else getattr(box, renews)()
    assert box.jobs() == [] and "sleep" not in processes(box)
    box.start_job("old", "echo new")
    assert box.job("old", seconds=60).stdout == "new\n"


def test_killed_processes_are_told_of(box):
    box.start_job("job", "echo x; sleep 1000")
    box.kill_processes()
    ended = box.job("job", seconds=60)
    assert ended.exit_code == 137 and ended.stdout in ("", "x\n")


def test_a_lost_sandbox_ends_the_wait(own_box):
    own_box.start_job("job", "sleep 1000")

    async def wait_and_lose():
        waiting = asyncio.create_task(own_box.later.job("job", seconds=60))
        await asyncio.sleep(0)
        await own_box.later.machine.destroy()
        await waiting

    with pytest.raises(SandboxLost):
        wait_for(wait_and_lose())

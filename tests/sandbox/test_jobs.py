"""Single processes: standard streams apart, true exit codes, signals, terminals."""

import asyncio
import signal

import pytest

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.blocking import wait_for
from ale_jax.sandbox.spec import WORK
from tests.sandbox.conftest import SPEC, processes


@pytest.mark.each_runtime
def test_streams_are_kept_apart(box):
    result = box.exec("cat; echo warned >&2; exit 3", stdin=b"fed\n")
    assert (result.stdout, result.stderr, result.exit_code) == ("fed\n", "warned\n", 3)
    assert not result.timed_out and result.omitted_bytes == 0


def test_words_are_not_a_command_line(box):
    assert box.exec(["echo", "$HOME; ls", "*"]).stdout == "$HOME; ls *\n"


def test_a_job_shares_no_state_with_a_session(box):
    box.run("x=3; cd /tmp")
    assert box.exec("echo $x $PWD").stdout == "/work\n"
    box.exec("echo kept > f")
    assert box.run(f"cat {WORK}/f").output == "kept\n"


@pytest.mark.parametrize(
    ("command", "code"), [("kill -9 $$", 137), ("kill -TERM $$", 143), ("exit 255", 255)]
)
def test_exit_codes_are_true(box, command, code):
    assert box.exec(command).exit_code == code


def test_what_cannot_be_started_says_so(box):
    result = box.exec(["no-such-program"])
    assert result.exit_code == 127
    assert "cannot start no-such-program" in result.stderr
    assert box.exec(["echo", "a\0b"]).exit_code == 127


@pytest.mark.each_runtime
def test_a_timeout_ends_the_job_and_all_it_started(box):
    result = box.exec("echo before; setsid sleep 1234 & sleep 5678", timeout=0.3)
    assert (result.stdout, result.exit_code, result.timed_out) == ("before\n", 124, True)
    assert "sleep" not in processes(box)


def test_head_and_tail_of_each_stream_are_kept(box):
    result = box.exec("seq 100000; seq 100000 >&2")
    for text in (result.stdout, result.stderr):
        assert text.startswith("1\n2\n") and text.endswith("99999\n100000\n")
        assert f"[... {588895 - SPEC.output_bytes} bytes omitted ...]" in text
    assert result.omitted_bytes == 2 * (588895 - SPEC.output_bytes)


def test_input_of_megabytes(box):
    assert box.exec("wc -c", stdin=b"x" * (3 << 20)).stdout == f"{3 << 20}\n"


def test_input_that_nobody_reads_does_not_hold_the_job(box):
    assert box.exec("sleep 0.1; echo done", stdin=b"x" * (3 << 20)).stdout == "done\n"


def test_a_background_process_does_not_hold_the_job(box):
    assert box.exec("echo now; sleep 1234 &").stdout == "now\n"


def test_output_comes_while_the_job_runs_and_no_faster_than_it_is_taken(box):
    async def talk():
        job = box.later.spawn("while read line; do echo got $line; done; yes")
        await job.write(b"one\n")
        assert await job.receive() == ("stdout", b"got one\n")
        await job.write(b"two\n")
        assert await job.receive() == ("stdout", b"got two\n")
        job.close_stdin()
        flood = 0
        while flood < 1 << 20:
            flood += len((await job.receive())[1])
        await asyncio.sleep(0.2)  # meanwhile the windows are full, and `yes` stands still
        assert job._stream._held <= 1 << 18
        await job.kill()
        return await job.wait()

    assert wait_for(talk()) == 137


@pytest.mark.each_runtime
def test_signals_reach_the_job(box):
    async def talk():
        job = box.later.spawn("trap 'echo caught; exit 5' USR1; echo ready; sleep 60 & wait")
        assert await job.receive() == ("stdout", b"ready\n")
        await job.signal(signal.SIGUSR1)
        assert await job.receive() == ("stdout", b"caught\n")
        code = await job.wait()
        with pytest.raises(SandboxError, match="is not running"):
            await job.signal(signal.SIGTERM)
        return code

    assert wait_for(talk()) == 5


@pytest.mark.each_runtime
def test_a_terminal_is_one(box):
    async def talk():
        job = box.later.spawn(["bash", "--norc"], env={"PS1": "> "}, terminal=(30, 100))
        await job.write(b"tty; stty size; exit 4\n")
        text = b""
        while (piece := await job.receive()) is not None:
            text += piece[1]
        return text.decode(), await job.wait()

    text, code = wait_for(talk())
    assert "/dev/pts/" in text and "30 100" in text
    assert code == 4


def test_a_terminal_is_resized_and_interrupted(box):
    async def talk():
        job = box.later.spawn("stty -echo; echo ready; sleep 60; stty size", terminal=(30, 100))
        assert await job.receive() == ("stdout", b"ready\r\n")
        await job.resize(40, 120)
        await job.write(b"\x03")
        return await job.wait()

    assert wait_for(talk()) == 130


def test_jobs_run_side_by_side(box):
    async def many():
        jobs = [box.later.exec(f"sleep 0.1; echo {n}") for n in range(8)]
        return [result.stdout for result in await asyncio.gather(*jobs)]

    assert wait_for(many()) == [f"{n}\n" for n in range(8)]

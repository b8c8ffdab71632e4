"""Several sessions in one sandbox: each its own bash, none in another's way."""

import asyncio
import os
import threading
import time

import pytest

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.blocking import wait_for
from ale_jax.sandbox.runner.session import REPLY_FD
from tests.sandbox.conftest import processes
from tests.sandbox.runner_view import open_files

pytestmark = pytest.mark.each_runtime


@pytest.fixture
def two(box):
    """A sandbox with the sessions "main" and "other"."""
    box.open_session("other", env={"COLOUR": "green"})
    return box


def test_each_session_has_its_own_state(two):
    two.run("x=1; cd /tmp")
    two.run("x=2", session="other")
    assert two.run("echo $x $PWD $COLOUR").output == "1 /tmp\n"
    assert two.run("echo $x $PWD $COLOUR", session="other").output == "2 /work green\n"


def test_sessions_do_not_wait_for_each_other(two):
    first = threading.Thread(target=two.run, args=("until [ -e go ]; do sleep 0.01; done",))
    first.start()
    assert two.run("touch go && echo gone", session="other").output == "gone\n"
    first.join(10)
    assert not first.is_alive()


def test_a_session_takes_one_command_at_a_time(two):
    first = threading.Thread(target=two.run, args=("until [ -e go ]; do sleep 0.01; done",))
    first.start()
    while "sleep" not in two.run("cat /proc/[0-9]*/cmdline", session="other").output:
        pass
    with pytest.raises(SandboxError, match="session 'main' is busy"):
        two.run("true")
    two.run("touch go", session="other")
    first.join(10)


def test_a_timeout_ends_what_its_own_session_started(two):
    two.run("x=5; sleep 1111 &", session="other")
    two.run("setsid sleep 2222 & sleep 3333", timeout=0.3)
    running = processes(two)
    assert "1111" in running
    assert "2222" not in running and "3333" not in running
    assert two.run("echo $x; jobs -r | wc -l", session="other").output == "5\n1\n"


def test_a_daemon_does_not_escape_its_session(two):
    daemon = "(setsid sh -c 'sleep 2222 & exec sleep 1111' &)"
    two.run(f"{daemon}; sleep 0.1")
    assert "1111" in processes(two) and "2222" in processes(two)
    two.close_session("main")
    two.open_session("main")
    assert "1111" not in processes(two) and "2222" not in processes(two)


def test_an_environment_comes_back_with_the_session(two):
    assert two.run("exit 3", session="other").exit_code == 3
    assert two.run("echo $COLOUR", session="other").output == "green\n"


def test_reset_leaves_the_first_session_alone(two):
    two.reset()
    assert two.run("echo here").output == "here\n"
    with pytest.raises(SandboxError, match="no session 'other'"):
        two.run("true", session="other")


def test_names_are_unique_and_must_exist(two):
    with pytest.raises(SandboxError, match="session 'other' is open already"):
        two.open_session("other")
    with pytest.raises(SandboxError, match="no session 'third'"):
        two.close_session("third")


def test_a_session_that_is_opened_again_begins_anew(two):
    assert two.run("cd /tmp; exit 3", session="other").session_ended
    two.close_session("other")
    wait_for(two.later.open_session("other", cwd="/tmp"))
    assert two.run("echo $PWD $COLOUR", session="other").output == "/tmp\n"


async def _open_at_each_descriptor(box):
    """What a command says in sessions of which each has higher descriptors than the one before: by
    the one of another socket that listens. The descriptors that bash is given are among them."""
    said = []
    for port in range(2000, 2000 + REPLY_FD + 1):
        await box.listen(port, None)
        if port > 2000 + REPLY_FD - 40:
            await box.open_session("next")
            said.append((await box.run("echo $?", session="next")).output)
            await box.close_session("next")
    return said


@pytest.mark.heavy
def test_a_session_works_whichever_descriptors_the_runner_has_left(own_box):
    said = wait_for(_open_at_each_descriptor(own_box.later))
    assert said == ["0\n"] * 40


def _interrupt_when(box, word, seconds=2.0):
    """Interrupts the main session once `word` is in the command line of a process."""
    while word not in box.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout:
        time.sleep(0.01)
    return box.interrupt(seconds=seconds)


def _run_in_thread(box, command):
    results = []
    thread = threading.Thread(target=lambda: results.append(box.run(command)))
    thread.start()
    return thread, results


def test_an_interrupt_ends_the_command_and_keeps_the_session(box):
    box.run("x=3; cd /tmp")
    thread, results = _run_in_thread(box, "echo started; sleep 1234")
    assert _interrupt_when(box, "sleep 1234")
    thread.join(10)
    (result,) = results
    assert (result.output, result.exit_code, result.timed_out) == ("started\n", 130, False)
    assert box.run("echo $x $PWD").output == "3 /tmp\n"


def test_what_ignores_the_interrupt_is_killed(box):
    box.run("x=3")
    thread, results = _run_in_thread(box, "bash -c 'trap \"\" INT; sleep 1234; sleep 5678'")
    assert _interrupt_when(box, "sleep 1234", seconds=0.2)
    thread.join(10)
    assert (results[0].exit_code, results[0].session_ended) == (130, False)
    assert "sleep" not in processes(box)
    assert box.run("echo $x").output == "3\n"


def test_an_interrupt_without_a_command_is_nothing(box):
    assert not box.interrupt()
    assert box.run("echo alive").output == "alive\n"


@pytest.mark.parametrize("how", ["closed", "reset", "killed"])
def test_a_command_whose_session_ends_meanwhile_ends_with_its_output(two, how):
    results = []
    command = "echo started; sleep 1234"
    running = threading.Thread(target=lambda: results.append(two.run(command, session="other")))
    running.start()
    while "sleep 1234" not in processes(two):
        time.sleep(0.01)
    end = {"closed": lambda: two.close_session("other"), "reset": two.reset}
    end.get(how, two.kill_processes)()
    running.join(20)
    (result,) = results
    assert (result.output, result.exit_code) == ("started\n", 137)
    assert result.session_ended and not result.timed_out
    assert two.run("echo alive").output == "alive\n"


def _expect_while(box, end):
    """What an expectation returns during which `end`, a coroutine function, ends the session."""

    async def talk():
        await box.begin("echo started; sleep 1234", session="other")
        waiting = asyncio.ensure_future(box.expect("never", session="other"))
        await asyncio.sleep(0)
        await box.stats()  # the runner takes requests in order, so it waits by now
        await end()
        return await waiting

    box = box.later
    return wait_for(talk())


def test_an_expectation_whose_session_is_closed_ends_with_the_session(two):
    last = _expect_while(two, lambda: two.later.close_session("other"))
    assert (last.matched, last.exit_code) == (False, 137)


@pytest.mark.skipif(os.getuid() != 0, reason="only root sees a runner's descriptors")
def test_a_session_that_is_closed_during_a_command_leaves_no_descriptor(box):
    before = open_files(box)
    for end in (lambda: box.later.close_session("other"), box.later.reset):
        box.open_session("other")
        assert _expect_while(box, end).exit_code == 137
    assert open_files(box) == before


def test_output_is_told_while_the_command_runs(box):
    pieces, answers = [], []

    def on_output(data):
        pieces.append(data)
        if data == b"first\n":  # the command waits for what this starts
            answers.append(asyncio.ensure_future(box.later.exec("touch go")))

    command = "echo first; until [ -e go ]; do sleep 0.01; done; echo second"
    result = wait_for(box.later.run(command, on_output=on_output))
    assert result.output == "first\nsecond\n"
    assert b"".join(pieces) == b"first\nsecond\n"
    assert len(answers) == 1


def test_the_shells_own_variables_are_the_agents_to_unset(box):
    box.run("x=3; unset PWD OLDPWD")
    assert box.run("echo $x").output == "3\n"
    assert box.run("trap '' INT; while :; do sleep 9; done", timeout=0.2).session_ended
    assert box.run("pwd").output == "/work\n"

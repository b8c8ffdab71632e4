"""A dialogue with a command on a session's terminal."""

import threading

import pytest

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.runner import terminal
from tests.sandbox.conftest import SPEC, processes


@pytest.mark.each_runtime
def test_a_dialogue_with_an_interpreter(box):
    box.begin("python3 -q")
    assert box.expect(">>> ").matched
    box.send("6 * 7\n")
    answer = box.expect(">>> ")
    assert (answer.matched, answer.exit_code) == (True, None)
    assert answer.output.splitlines()[-2:] == ["42", ">>> "]
    box.send("raise SystemExit(3)\n")
    assert box.expect().exit_code == 3


@pytest.mark.each_runtime
def test_it_runs_in_the_session_and_keeps_its_state(box):
    box.run("cd /tmp; greeting=hello; greet() { echo $greeting $1; }")
    box.begin("read -p 'name? ' name; greet $name; tty -s && pwd")
    assert box.expect(r"\? $").output == "name? "
    box.send("it's\n")
    last = box.expect()
    assert (last.output, last.matched, last.exit_code) == ("hello it's\n/tmp\n", False, 0)
    assert box.run("echo $name; tty").output == "it's\nnot a tty\n"


def test_the_terminal_has_the_size_that_was_asked_for(box):
    for size in ((30, 120), (0, 0)):
        box.begin("stty size", rows=size[0], columns=size[1])
        assert box.expect().output == f"{size[0]} {size[1]}\n"
    box.begin("stty size")
    assert box.expect().output == "0 0\n"
    with pytest.raises(ValueError, match="rows 1001 and columns -1 must be from 0 to 1000"):
        box.begin("true", rows=1001, columns=-1)


def test_what_follows_a_match_is_left_for_the_next(box):
    box.begin("printf 'one two three'; read x")
    assert box.expect("o").output == "o"
    assert box.expect("t[a-z]o").output == "ne two"
    assert box.expect("e+").output == " three"
    assert box.expect("nothing", timeout=0.1).matched is False
    box.send("\n")
    assert box.expect().exit_code == 0


def test_time_that_is_over_leaves_the_command_alone(box):
    box.begin("echo early; read x; echo late $x")
    first = box.expect("late", timeout=2.0)  # time enough for a busy machine to begin
    assert (first.output, first.matched, first.exit_code) == ("early\n", False, None)
    box.send("now\n")
    assert box.expect("late").output == "late"


def test_an_expectation_ends_with_the_command_though_another_process_holds_the_terminal(box):
    box.begin("sleep 60 & echo done")
    last = box.expect("never", timeout=5.0)
    assert (last.output, last.matched, last.exit_code) == ("done\n", False, 0)
    assert box.run("echo next").output == "next\n"


def test_the_session_is_busy_until_an_interrupt_ends_the_command(box):
    box.run("x=3")
    box.begin("sleep 1234; echo after")
    with pytest.raises(SandboxError, match="session 'main' is busy"):
        box.run("true")
    assert box.interrupt()
    assert box.expect("after").exit_code == 130
    assert box.run("echo $x").output == "3\n"
    assert "1234" not in processes(box)


def test_an_interrupt_waits_until_bash_has_read_the_command(box):
    """Bash would ignore an earlier one, and go on with what follows the program that is killed."""
    bash = box.run("echo $$").output.strip()
    box.exec(f"kill -STOP {bash}")
    box.begin("sleep 1234; echo after")
    box.exec(f"(sleep 0.3; kill -CONT {bash}) > /dev/null 2>&1 &")
    assert box.interrupt()
    assert box.expect("after").exit_code == 130


def test_a_flood_is_read_up_to_a_limit_and_nobody_waits_for_it(box):
    box.begin("yes flood")
    first = box.expect("never", timeout=0.5)
    assert first.omitted_bytes > 0 and len(first.output) < SPEC.output_bytes + 100
    assert box.exec("echo here").stdout == "here\n"
    box.interrupt()


def test_a_match_of_4_kib_is_found_wherever_its_pieces_end(box):
    box.begin(f"printf x; head -c {terminal.PIECE - 2} /dev/zero | tr '\\0' =; printf y; read x")
    assert box.expect("x=+y").matched


def test_a_session_that_ends_ends_the_dialogue(box):
    box.begin("exit 5")
    assert box.expect("never", timeout=5.0).exit_code == 5
    assert box.run("echo new").output == "new\n"


def test_input_that_nobody_reads_is_refused(box):
    box.begin("stty raw; echo ready; sleep 60")
    box.expect("ready")
    with pytest.raises(SandboxError, match="does not read its input"):
        box.send("x" * 1_000_000)


def test_two_cannot_read_at_once(box):
    box.begin("sleep 60")
    first = threading.Thread(target=box.expect, args=("never",))
    first.start()
    with pytest.raises(SandboxError, match="another 'expect' is not finished"):
        while True:
            box.expect("never", timeout=0.01)
    box.interrupt()
    first.join(10)
    assert not first.is_alive()


@pytest.mark.parametrize("act", [lambda b: b.send("x"), lambda b: b.expect("x")])
def test_without_a_command_there_is_no_dialogue(box, act):
    box.run("true")
    with pytest.raises(SandboxError, match="session's terminal: begin one"):
        act(box)


@pytest.mark.parametrize("pattern", ["(", "[a", "x" * 1001])
def test_a_pattern_that_is_none_is_refused(box, pattern):
    with pytest.raises(ValueError, match="pattern"):
        box.expect(pattern)

"""What a command in the session sees and leaves behind, the same in every runtime."""

import time

import pytest

from tests.sandbox.conftest import processes


@pytest.mark.each_runtime
def test_state_stays_from_one_command_to_the_next(box):
    box.run("cd /tmp; x=3; greet() { echo hello $1; }")
    assert box.run("greet $x; pwd").output == "hello 3\n/tmp\n"


def test_exit_code_is_data(box):
    assert box.run("false").exit_code == 1
    assert box.run("(exit 42)").exit_code == 42
    assert box.run("no-such-command").exit_code == 127
    assert box.run("no-such-command").output == "bash: line 1: no-such-command: command not found\n"


def test_output_is_stdout_and_stderr_in_the_order_written(box):
    assert box.run("echo a; echo b >&2; echo c").output == "a\nb\nc\n"


def test_whitespace_and_undecodable_output_survive(box):
    assert box.run(r"printf '  a\xff\n\n'").output == "  a\ufffd\n\n"


@pytest.mark.each_runtime
def test_environment_is_clean_and_not_interactive(box):
    output = box.run("env; cat; tty").output  # `cat` would wait if there were any input
    names = {line.partition("=")[0] for line in output.splitlines()}
    assert {"TERM=dumb", "PAGER=cat", "GIT_PAGER=cat", "LC_ALL=C.UTF-8"} <= set(output.split())
    assert "DEBIAN_FRONTEND=noninteractive" in output
    assert names <= {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LC_ALL", "TERM", "PAGER", "GIT_PAGER"),
        *("DEBIAN_FRONTEND", "PWD", "OLDPWD", "SHLVL", "_", "not a tty"),
    }


@pytest.mark.parametrize("command", ["exit 3", "exec bash -c 'exit 3'", "set -e; (exit 3)"])
def test_session_that_ends_is_opened_again(box, command):
    box.run("cd /tmp")
    result = box.run(command)
    assert (result.exit_code, result.session_ended) == (3, True)
    assert box.run("pwd").output == "/work\n"


@pytest.mark.each_runtime
def test_session_killed_by_signal_is_opened_again(box):
    assert box.run("kill -9 $$").exit_code == 137
    assert box.run("echo alive").output == "alive\n"


def test_session_that_died_between_commands_is_opened_again(box):
    box.run("(sleep 0.05; kill -9 $$) & true")
    time.sleep(0.3)
    assert box.run("echo alive").output == "alive\n"


@pytest.mark.each_runtime
def test_timeout_returns_what_was_written_and_keeps_the_state(box):
    box.run("cd /tmp; x=3; greet() { echo hello; }; export COLOUR=green")
    result = box.run("echo before; sleep 60; echo after", timeout=0.3)
    assert (result.output, result.exit_code, result.timed_out) == ("before\n", 124, True)
    assert not result.session_ended
    state = box.run("pwd; echo $x; greet; env | grep COLOUR").output
    assert state == "/tmp\n3\nhello\nCOLOUR=green\n"


LOOPING = {
    "a list": "sleep 60; echo after",
    "lines": "sleep 60\necho after\necho after",
    "a loop of programs": "while :; do sleep 60; done; echo after",
    "a loop of builtins": "while :; do :; done; echo after",
    "a loop until": "until sleep 60; do echo after; done; echo after",
    "nested loops": "for i in 1 2; do for ((;;)); do ((i++)); done; done; echo after",
    "a function": "f() { while :; do sleep 60; done; echo after; }; f; echo after",
    "functions in a loop": "f() { sleep 60; echo after; }; g() { f; }; while g; do echo x; done",
    "a sourced file": "echo 'sleep 60; echo after' > s; while :; do . ./s; done; echo after",
    "wait": "sleep 60 & wait; echo after",
    "a pipe": "yes | while read y; do :; done; echo after",
    "a substitution": "y=$(sleep 60); echo after",
    "an inner eval": "eval 'eval \"sleep 60; echo after\"; echo after'; echo after",
}


@pytest.mark.parametrize("command", LOOPING.values(), ids=LOOPING)
def test_timeout_leaves_all_of_the_command_and_keeps_the_session(box, command):
    box.run("x=3")
    result = box.run(command, timeout=0.3)
    assert (result.output, result.timed_out, result.session_ended) == ("", True, False)
    # Bash may first report that a background job of the command was killed.
    left = box.run("echo $x; trap -p DEBUG; shopt -q extdebug")
    assert left.output.endswith("3\n") and left.exit_code == 1


def test_timeout_leaves_a_chance_to_clean_up(box):
    box.run("bash -c 'trap \"echo cleaned > ~/note; exit\" INT; sleep 60 & wait'", timeout=0.2)
    assert box.read("note") == b"cleaned\n"


@pytest.mark.each_runtime
def test_timeout_kills_what_ignores_being_told_and_keeps_the_session(box):
    box.run("x=3")
    ignores = "bash -c 'trap \"\" INT TERM; setsid sleep 1234 & sleep 1234; sleep 1234'"
    result = box.run(f"{ignores} & {ignores}; echo after", timeout=0.2)
    assert "after\n" not in result.output
    assert (result.timed_out, result.session_ended) == (True, False)
    assert "1234" not in processes(box)
    assert box.run("echo $x").output.endswith("3\n")


@pytest.mark.parametrize("trap", ["''", ":"])
def test_a_shell_that_does_not_let_itself_be_interrupted_ends(box, trap):
    box.run("cd /tmp; x=3")
    result = box.run(f"trap {trap} INT; while :; do sleep 1234; done", timeout=0.2)
    assert (result.exit_code, result.timed_out, result.session_ended) == (124, True, True)
    assert "1234" not in processes(box)
    assert box.run("pwd; echo x=$x").output == "/tmp\nx=\n"


@pytest.mark.each_runtime
def test_timeout_spares_what_earlier_commands_left_running(box):
    box.run("(while :; do sleep 0.02; done) & sleep 1234 &")
    box.run("sleep 2345 & sleep 3456", timeout=0.3)
    running = processes(box)
    assert "1234" in running and "2345" not in running and "3456" not in running
    assert box.run("jobs -pr | wc -l").output.endswith("2\n")


def test_an_interrupt_between_commands_costs_nothing(box):
    box.run("x=3; (for i in {1..100}; do kill -INT $$; done) &")
    for number in range(20):
        assert box.run(f"echo $x {number}").output in (f"3 {number}\n", "")
    box.run("wait")
    assert box.run("echo $x").output == "3\n"


def test_timeout_must_be_positive(box):
    with pytest.raises(ValueError, match="timeout 0"):
        box.run("true", timeout=0)


def test_long_output_keeps_head_and_tail(box):
    result = box.run("seq 100000")
    assert result.output.startswith("1\n2\n") and result.output.endswith("99999\n100000\n")
    assert result.omitted_bytes == 588895 - 1000
    assert f"[... {588895 - 1000} bytes omitted ...]" in result.output


def test_output_of_exactly_the_limit_is_whole(box):
    result = box.run("printf 'x%.0s' {1..1000}")
    assert (result.output, result.omitted_bytes) == ("x" * 1000, 0)


def test_background_job_does_not_hold_the_command(box):
    assert not box.run("sleep 60 & echo started").timed_out


def test_command_of_a_megabyte(box):
    command = f"x={'y' * (1 << 20)}; echo ${{#x}}"
    assert box.run(command).output == f"{1 << 20}\n"


@pytest.mark.parametrize("text", ["", "é", "\ud800 \U0001f600", " x\\", "x\n\n", "\t", "\r"])
def test_a_command_arrives_byte_for_byte(box, text):
    first = box.run(f"cat <<'END'\n{text * 30_000}\nEND\nLC_ALL=C; export LC_ALL; x='{text}'")
    assert first.exit_code == 0
    result = box.run(f"printf %s '{text}' | od -An -tx1; [ \"$x\" = '{text}' ] && echo same")
    *words, same = result.output.split()
    assert bytes.fromhex("".join(words)) == text.encode("utf-8", "replace") and same == "same"


def test_command_with_nul_is_refused_as_bash_refuses_nonsense(box):
    assert box.run("echo a\0b").exit_code == 2


def test_heredoc_and_newlines(box):
    assert box.run("cat <<END\none\n'two\nEND\necho three").output == "one\n'two\nthree\n"


@pytest.mark.parametrize(
    "command", ["echo 'open", 'echo "open', "echo $(", "if true", "<<E cat", "}"]
)
def test_unbalanced_text_ends_by_itself(box, command):
    assert not box.run(command).timed_out
    assert box.run("echo alive").output == "alive\n"

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
    assert box.run(command).exit_code == 3
    assert box.run("pwd").output == "/work\n"


@pytest.mark.each_runtime
def test_session_killed_by_signal_is_opened_again(box):
    assert box.run("kill -9 $$").exit_code == 137
    assert box.run("echo alive").output == "alive\n"


def test_session_that_died_between_commands_is_opened_again(box):
    box.run("(sleep 0.05; kill -9 $$) & true")
    time.sleep(0.3)
    assert box.run("echo alive").output == "alive\n"


def test_timeout_returns_what_was_written_and_keeps_the_directory(box):
    box.run("cd /tmp; x=3")
    result = box.run("echo before; sleep 60; echo after", timeout=0.3)
    assert (result.output, result.exit_code, result.timed_out) == ("before\n", 124, True)
    assert result.seconds < 3
    assert box.run("pwd; echo x=$x").output == "/tmp\nx=\n"


def test_timeout_leaves_a_chance_to_clean_up(box):
    box.run("trap 'echo cleaned > ~/note; exit' TERM; sleep 60 & wait", timeout=0.2)
    assert box.read("note") == b"cleaned\n"


@pytest.mark.each_runtime
def test_timeout_kills_what_ignores_being_told(box):
    box.run("trap '' TERM; setsid sleep 1234 & sleep 1234", timeout=0.2)
    assert "sleep" not in processes(box)


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

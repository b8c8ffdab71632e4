"""The shell keeps its state, and survives what hostile commands do to it."""

import asyncio
import threading

import pytest

from ale_jax.agent.assistant.tools.bash import Shell, _Output
from tests.rows import each_row

pytestmark = pytest.mark.heavy


def run(folder, *commands, seconds=20, kept_chars=1000):
    async def all_of_them():
        shell = Shell(folder, kept_chars)
        try:
            return [await shell.run(command, seconds) for command in commands]
        finally:
            await shell.close()

    return asyncio.run(all_of_them())


def test_directory_variables_and_functions_stay(folder):
    *_, last = run(folder, "mkdir d; cd d; x=1", 'f() { echo "f $x"; }', "f; basename $PWD")
    assert (last.text, last.exit_code) == ("f 1\nd\n", 0)


def test_the_exit_code_is_the_commands_and_errors_are_in_the_output(folder):
    failed, after = run(folder, "echo out; echo err >&2; (exit 7)", "echo 'it'\"'\"'s'")
    assert (failed.text, failed.exit_code) == ("out\nerr\n", 7)
    assert (after.text, after.exit_code) == ("it's\n", 0)


def test_a_syntax_error_does_not_end_the_shell(folder):
    kept, broken, after = run(folder, "x=1", "if then fi (", "echo $x")
    assert kept.exit_code == 0 and broken.exit_code != 0 and not broken.shell_ended
    assert "syntax error" in broken.text and after.text == "1\n"


def test_a_command_that_reads_gets_nothing_instead_of_the_next_command(folder):
    read, after = run(folder, 'cat; read x; echo "<$x>"', "echo on")
    assert (read.text, after.text) == ("<>\n", "on\n")


def test_a_command_that_does_not_end_is_killed_with_what_it_started(folder):
    command = "sleep 1000 & echo $! > pid; echo begun; sleep 1000"
    hung, after = run(
        folder, command, "grep -s ^State /proc/$(cat pid)/status; echo $PWD", seconds=3
    )
    assert hung.timed_out and hung.text.strip() == "begun"
    assert "sleeping" not in after.text and after.text.splitlines()[-1] == str(folder)


@pytest.mark.parametrize(
    ("end", "exit_code"),
    [
        ("exit 3", 3),
        ("sleep 1000 & exit 3", 3),
        ("sleep 1000 & set -e; (exit 3)", 3),
        ("setsid yes >&2 & kill -9 $$", -9),  # is in no group of ours, and writes without end
    ],
)
def test_a_shell_that_ends_is_started_anew(folder, end, exit_code):
    ended, after = run(folder, f"echo last; {end}", "echo again")
    assert (ended.exit_code, ended.shell_ended, ended.timed_out) == (exit_code, True, False)
    assert ended.text.startswith("last\n") and after.text == "again\n"


def test_what_a_shell_wrote_before_its_end_is_read_although_others_hold_its_pipe(folder):
    command = "sleep 1000 & touch begun; until [ -e go ]; do :; done; printf %060000d 7; exit"

    async def with_the_loop_stopped_meanwhile():
        shell = Shell(folder, 100_000)
        task = asyncio.create_task(shell.run(command, 20))
        while not (folder / "begun").exists():
            await asyncio.sleep(0.01)
        (folder / "go").touch()
        for thread in threading.enumerate():
            if thread.name == "shell":
                thread.join(20)
        return await task

    ended = asyncio.run(with_the_loop_stopped_meanwhile())
    assert (ended.text, ended.shell_ended) == (f"{7:060000d}", True)


def test_of_a_long_output_head_and_tail_are_kept(folder):
    (output,) = run(folder, "seq 1 200000", kept_chars=100)
    assert output.text.startswith("1\n2\n3\n") and output.text.endswith("199999\n200000\n")
    assert "characters left out" in output.text and len(output.text) < 400


def test_what_goes_on_in_the_background_is_not_waited_for(folder):
    begun, after = run(folder, "sleep 1000 & echo begun", "echo next")
    assert begun.text == "begun\n" and after.text == "next\n"


def test_the_key_of_the_endpoint_is_not_for_commands(folder, monkeypatch):
    given = {
        "OPENAI_API_KEY": "secret",
        "ANTHROPIC_API_KEY": "another secret",
        "SAME_KEY": "secret",
        "ALE_AGENT_CONFIG": "headers = 'a third secret'",
        "OTHER": "not it",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    (output,) = run(folder, f"printenv {' '.join(given)}")
    assert output.text == "not it\n"


def test_an_empty_key_hides_no_empty_variable(folder, monkeypatch):
    for name in ("OPENAI_API_KEY", "OTHER"):
        monkeypatch.setenv(name, "")
    (output,) = run(folder, "echo ${OTHER-unset}")
    assert output.text == "\n"


@each_row("cut", [(cut,) for cut in range(1, 30)])
def test_the_mark_is_found_wherever_the_stream_is_divided(cut):
    (cut,) = cut
    stream = "é one\nMARK 12\n".encode()
    output = _Output("MARK", 4)
    for chunk in (stream[:cut], stream[cut:]):
        if chunk:
            output.add(chunk)
    assert (output.text(), output.exit_code) == ("é one", 12)

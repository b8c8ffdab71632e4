"""Single processes in real sandboxes: with their output, of any length, left alone, and of other
users."""

import dataclasses

import pytest

from ale_jax.sandbox.api import SandboxError
from tests.sandbox.conftest import SPEC
from tests.sandbox.service.test_sandboxes_over_http import commands


def test_a_process_has_input_output_and_errors(remote):
    result = remote.exec("cat; echo $X $PWD >&2; exit 4", stdin=b"\0in", cwd="/tmp", env={"X": "1"})
    assert (result.stdout, result.stderr, result.exit_code) == ("\0in", "1 /tmp\n", 4)


def test_output_comes_while_the_process_runs(remote):
    with remote.spawn("echo one; read; echo two >&2; exit 5", stdin=b"") as output:
        pieces = iter(output)
        assert next(pieces) == ("stdout", b"one\n")
        assert output.exit_code is None
        assert list(pieces) == [("stderr", b"two\n")] and output.exit_code == 5


def test_a_process_ends_with_the_client_that_left_it(remote):
    with remote.spawn("echo begun; sleep 987") as output:
        assert next(iter(output)) == ("stdout", b"begun\n")
        assert "sleep 987" in commands(remote)
    for _ in range(200):
        if "sleep 987" not in commands(remote):
            return
    pytest.fail("it runs on")


LONG = "#" * 300_000 + "\nread x; echo got $x; exit 7"


def test_a_command_may_be_longer_than_a_url_and_than_an_argument(remote):
    with remote.terminal(LONG) as terminal:
        terminal.send(b"yes\n")
        assert b"".join(terminal).endswith(b"got yes\r\n") and terminal.exit_code == 7
    with remote.pipes(LONG) as pipes:
        pipes.send(b"yes\n")
        assert list(pipes) == [("stdout", b"got yes\n")] and pipes.exit_code == 7
    with remote.spawn(LONG, stdin=b"yes\n") as output:
        assert list(output) == [("stdout", b"got yes\n")] and output.exit_code == 7
    assert remote.exec(LONG, stdin=b"yes\n").stdout == "got yes\n"
    assert remote.run(LONG, timeout=10).exit_code == 7
    with pytest.raises(ValueError, match="argument 1 has 300000 bytes"):
        remote.exec(["echo", "x" * 300_000])


def test_jobs_go_on_without_their_client(real, remote):
    remote.start_job("build", "echo out; read x; echo $x; exit 3", stdin=b"in\n")
    with real.client() as another:
        ended = another.attach(remote.id).job("build", seconds=60)
    assert (ended.stdout, ended.exit_code) == ("out\nin\n", 3) and remote.jobs() == ["build"]
    with pytest.raises(SandboxError, match="job 'build' exists already"):
        remote.start_job("build", "true")
    remote.end_job("build")
    with pytest.raises(SandboxError, match="there is no job 'build'"):
        remote.job("build")
    with pytest.raises(ValueError, match="name: String should match pattern"):
        remote.start_job("a b", "true")


def test_a_user_that_is_not_there_is_refused_by_each_way(remote):
    told = "user 'nobody': only a sandbox with user root has other users"
    for act in (remote.exec, lambda *words, user: remote.open_session("s", user=user)):
        with pytest.raises(ValueError, match=told):
            act("true", user="nobody")
    with remote.terminal("true", user="nobody") as terminal, pytest.raises(ValueError, match=told):
        list(terminal)
    with pytest.raises(ValueError, match=told), remote.spawn("true", user="nobody") as output:
        list(output)


@pytest.mark.heavy
def test_root_acts_as_another_user_where_there_are_some(real, runtime):
    if runtime.name != "docker":
        pytest.skip("users are Docker's")
    with real.client() as client, client.start(dataclasses.replace(SPEC, user="root")) as box:
        assert box.exec("id -un", user="agent").stdout == "agent\n"
        with box.spawn("id -un", user="agent") as output:
            assert list(output) == [("stdout", b"agent\n")]
        with box.pipes("id -un", user="agent") as pipes:
            assert list(pipes) == [("stdout", b"agent\n")]
        box.open_session("theirs", user="agent")
        assert box.run("id -un", session="theirs").output == "agent\n"

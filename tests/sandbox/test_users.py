"""Users of a sandbox's own: root adds them in a writable /etc, and has sessions as them."""

import dataclasses

import pytest

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.blocking import wait_for
from ale_jax.sandbox.runner.files import RUNNER_ID
from ale_jax.sandbox.spec import SandboxSpec
from tests.sandbox.conftest import SPEC

pytestmark = pytest.mark.each_runtime

ROCK = "rock:x:1234:1235::/opt/rock:/bin/bash"


@pytest.fixture(scope="module")
def shared_etc_box(runtime):
    spec = dataclasses.replace(SPEC, user="root", writable=("/etc", "/opt"))
    with runtime.start(spec, {"run": "tests"}) as sandbox:
        yield sandbox


@pytest.fixture
def etc_box(shared_etc_box):
    shared_etc_box.reset()
    return shared_etc_box


def add_user(box):
    box.run(f"echo {ROCK} >> /etc/passwd; echo crew:x:77:rock,ann >> /etc/group; mkdir /opt/rock")


def test_only_root_may_write_there():
    with pytest.raises(ValueError, match="'/etc' is part of the system"):
        SandboxSpec(writable=("/etc",))


@pytest.mark.heavy
def test_etc_is_as_in_the_image_at_the_start_and_after_a_reset(etc_box):
    look = (
        "find /etc | sort | sha256sum; stat -c %a /etc; head -n 1 /etc/passwd; wc -l < /etc/hosts"
    )
    before = etc_box.run(look).output
    assert "\n755\nroot:x:0:0:" in before and before[-2:] != "0\n"
    etc_box.run("rm /etc/passwd; echo 1 > /etc/new; echo 2 >> /etc/group; chmod 700 /etc")
    etc_box.reset()
    assert etc_box.run(look).output == before


def test_etc_is_in_snapshots(etc_box):
    etc_box.run("echo kept > /etc/kept")
    add_user(etc_box)
    snapshot = etc_box.snapshot()
    etc_box.reset()
    etc_box.restore(snapshot)
    assert etc_box.run("cat /etc/kept; tail -n 1 /etc/passwd").output == f"kept\n{ROCK}\n"


def test_a_session_is_its_users(etc_box, runtime):
    add_user(etc_box)
    if runtime.name != "docker":
        with pytest.raises(SandboxError, match="user id 1234 does not exist in this sandbox"):
            etc_box.open_session("theirs", user="rock")
        return
    etc_box.run("chown rock:1235 /opt/rock")
    etc_box.open_session("theirs", user="rock", env={"X": "1"})
    found = etc_box.run('id -u; id -g; id -G; echo "$HOME $USER $LOGNAME $X"', session="theirs")
    assert found.output == "1234\n1235\n1235 77\n/opt/rock rock rock 1\n"
    assert etc_box.run("touch ~/x && echo y > /dev/stdout", session="theirs").output == "y\n"
    assert (
        etc_box.run("touch /etc/x || kill -9 1 || echo no", session="theirs").output[-3:] == "no\n"
    )
    # It stays theirs when it has to be opened anew, and their processes end like others.
    assert etc_box.run("sleep 3333", timeout=0.2, session="theirs").timed_out
    assert etc_box.run("whoami", session="theirs").output == "rock\n"
    assert "3333" not in etc_box.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").output


def test_a_process_is_its_users(etc_box, runtime):
    add_user(etc_box)
    if runtime.name != "docker":
        with pytest.raises(SandboxError, match="user id 1234 does not exist in this sandbox"):
            etc_box.exec("id", user="rock")
        assert etc_box.exec("id -un", user="root").stdout == "root\n"
        return
    etc_box.run("chown rock:1235 /opt/rock")
    command = 'id -u; id -G; echo "$HOME $USER $X"; touch ~/x && echo y > /dev/stdout; cat'
    found = etc_box.exec(command, user="rock", env={"X": "1"}, stdin=b"in\n")
    assert (found.stdout, found.stderr) == ("1234\n1235 77\n/opt/rock rock 1\ny\nin\n", "")
    assert etc_box.exec("touch /etc/x", user="rock").exit_code == 1
    assert etc_box.exec("whoami").stdout == "root\n"
    long = "#" * 200_000 + "\nwhoami"
    assert etc_box.exec(long, user="rock").stdout == "rock\n"


def test_a_process_on_a_terminal_is_its_users(etc_box, runtime):
    if runtime.name != "docker":
        pytest.skip("users are Docker's")
    add_user(etc_box)

    async def talk():
        job = etc_box.later.spawn("whoami; echo x > /dev/tty", terminal=(24, 80), user="rock")
        text = b""
        while (piece := await job.receive()) is not None:
            text += piece[1]
        return text, await job.wait()

    assert wait_for(talk()) == (b"rock\r\nx\r\n", 0)


def test_an_agent_without_privileges_is_nobody_else(box):
    with pytest.raises(ValueError, match="user 'root': only a sandbox with user root"):
        box.exec("id", user="root")
    assert box.exec("id -un", user="agent").stdout == "agent\n"


def test_their_files_are_theirs_after_a_restore(etc_box, runtime):
    if runtime.name != "docker":
        pytest.skip("users are Docker's")
    add_user(etc_box)
    etc_box.run("touch /opt/rock/x && chown 1234:1235 /opt/rock/x")
    etc_box.restore(etc_box.snapshot())
    assert etc_box.run("stat -c '%u %g %U' /opt/rock/x").output == "1234 1235 rock\n"


@pytest.mark.parametrize(
    ("passwd", "told"),
    [
        ("", "there is no user 'rock'"),
        ("rock:x:1234", "there is no user 'rock'"),
        ("rock:x:-1:0::/:/bin/sh", "there is no user 'rock'"),
        (":" * 100_000, "there is no user 'rock'"),
    ],
    ids=("none", "torn", "negative", "long"),
)
def test_who_is_not_in_passwd_is_nobody(etc_box, passwd, told):
    etc_box.run(
        f"echo root:x:0:0::/:/bin/sh > /etc/passwd; printf '%s\\n' '{passwd}' >> /etc/passwd"
    )
    with pytest.raises(SandboxError, match=told):
        etc_box.open_session("theirs", user="rock")


@pytest.mark.parametrize("ids", [f"{RUNNER_ID}:0", f"1234:{RUNNER_ID}"], ids=("user", "group"))
def test_nobody_is_the_runner(etc_box, ids):
    etc_box.run(f"echo thief:x:{ids}::/:/bin/bash >> /etc/passwd")
    with pytest.raises(SandboxError, match=f"has the id {RUNNER_ID}, which is reserved"):
        etc_box.open_session("theirs", user="thief")
    assert etc_box.run("echo alive").output == "alive\n"


def test_a_passwd_that_is_no_file_keeps_nobody_waiting(etc_box):
    etc_box.run("rm /etc/passwd; mkfifo /etc/passwd")
    with pytest.raises(SandboxError, match="not a regular file"):
        etc_box.open_session("theirs", user="rock")
    assert etc_box.run("echo alive").output == "alive\n"


def test_root_is_who_its_sessions_are(etc_box):
    etc_box.open_session("own", user="root")
    assert etc_box.run("id -u", session="own").output == "0\n"


def test_an_agent_is_nobody_else(box):
    with pytest.raises(ValueError, match="only a sandbox with user root"):
        box.open_session("theirs", user="root")

"""What an episode leaves: a reset brings back all that a next episode could see, or ends the
sandbox."""

import concurrent.futures
import dataclasses
import socket

import pytest

from ale_jax.sandbox.api import SandboxLost
from benchmarks.sandbox.attacks.remains import CONNECT, LEAVE, LISTEN, look
from tests.sandbox.conftest import SPEC

pytestmark = [pytest.mark.each_runtime, pytest.mark.heavy]


@pytest.fixture(params=["agent", "root"])
def box(runtime, request):
    spec = dataclasses.replace(SPEC, user=request.param, output_bytes=1 << 20)
    with runtime.start(spec, {"run": "tests"}) as sandbox:
        yield sandbox


def test_no_note_in_a_file_outlives_a_reset(box):
    new = look(box)
    left = box.exec(["python3", "-c", LEAVE])
    assert left.exit_code == 0, left
    changed = set(look(box)) - set(new)
    assert sum("user.note" in line for line in changed) >= 3, changed
    assert sum("posix_acl_default" in line for line in changed) >= 3, changed
    assert sum("b'@" in line for line in changed) == 3, changed
    assert sum("True" in line for line in changed) >= 3, changed
    box.reset()
    assert look(box) == new


def test_what_cannot_be_restored_ends_the_sandbox(box):
    """More attributes than the kernel can list."""
    spoil = "import os\nfor n in range(300): os.setxattr('/work', f'user.{n:0>240}', b'')"
    assert box.exec(["python3", "-c", spoil]).exit_code == 0
    with pytest.raises(SandboxLost, match="cannot be reset"):
        box.reset()


def test_a_terminal_that_was_changed_is_new_or_ends_the_sandbox(runtime, box):
    """Docker's terminals are mounted for all episodes, and bubblewrap's for one."""
    new = look(box)
    changes = not box.run("touch -d 1980-01-01 /dev/pts/ptmx && chmod 600 /dev/pts/ptmx").exit_code
    assert changes == (runtime.name == "bubblewrap" or box.spec.user == "root")
    if changes and runtime.name == "docker":
        with pytest.raises(SandboxLost, match="differs from a new sandbox: written"):
            box.reset()
    else:
        box.reset()
        assert look(box) == new


def test_a_terminal_that_was_used_ends_nothing(box):
    box.begin("read line; echo $line")
    box.send("here\n")
    assert box.expect("here").matched
    box.reset()
    assert box.run("echo up").output == "up\n"


def test_connections_hold_no_port_of_the_next_episode(box):
    done = box.exec(["python3", "-c", CONNECT])
    assert done.exit_code == 0, done
    box.reset()
    after = box.exec(["python3", "-c", LISTEN])
    assert (after.exit_code, after.stdout) == (0, "[]\n"), after


def test_a_network_that_was_used_is_another_where_the_runner_can_make_one(runtime, box):
    """Docker's runner has no right to, so that what the kernel has counted stays to be seen."""
    count = "cat /proc/net/dev /proc/net/snmp /proc/net/snmp6 /proc/1/net/snmp | sha256sum"
    new = box.run(count).output
    for command in (
        "true",
        "ping6 -c1 ::1; exec 3<> /dev/tcp/127.0.0.1/9",
        "exec 3<> /dev/udp/1.1/9",
    ):
        box.run(command)
        box.reset()
        assert box.run(count).output == new or runtime.name == "docker", command


def test_what_is_relayed_is_reached_in_another_network(box):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10.0)
        with box.relay(8900, *server.getsockname()):
            for _ in range(3):
                client = "exec 3<> /dev/tcp/127.0.0.1/8900 && head -c 5 <&3"
                with concurrent.futures.ThreadPoolExecutor(1) as pool:
                    reading = pool.submit(box.run, client)
                    with server.accept()[0] as served:
                        served.sendall(b"hello")
                        assert reading.result().output == "hello"
                box.reset()

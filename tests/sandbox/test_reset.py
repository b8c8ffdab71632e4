"""A reset proves that the sandbox is as new, and otherwise ends it."""

import os
import subprocess
from pathlib import Path

import pytest

from ale_jax.sandbox.api import SandboxError, SandboxLost
from benchmarks.sandbox.host_view import runner_pid
from tests.sandbox.runner_view import tell

pytestmark = [
    pytest.mark.each_runtime,
    pytest.mark.skipif(os.getuid() != 0, reason="users of the host are only root's to choose"),
]


def limit_runner(box, limit: str) -> None:
    """Sets a limit of its runner, as the user that it has on the host."""
    pid = runner_pid(box.later)
    status = dict(
        line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    user, group = (status[name].split()[0] for name in ("Uid", "Gid"))
    become = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"]
    subprocess.run([*become, "prlimit", f"--pid={pid}", limit], check=True)


def test_a_file_that_stays_in_use_ends_the_sandbox(own_box):
    own_box.run("echo x > f")
    with (
        Path("/proc", str(runner_pid(own_box.later)), "root", "work", "f").open(),
        pytest.raises(SandboxLost, match="differs from a new sandbox: files"),
    ):
        own_box.reset()
    assert not own_box.alive()


def test_another_limit_of_the_runner_ends_the_sandbox(own_box):
    limit_runner(own_box, "--nofile=100:100")
    with pytest.raises(SandboxLost, match="differs from a new sandbox: limits"):
        own_box.reset()


def test_an_error_that_is_not_the_agents_loses_the_sandbox(own_box):
    limit_runner(own_box, "--fsize=8:8")
    with pytest.raises(SandboxLost, match="the runner cannot work: File too large"):
        own_box.write({"f": b"x" * 100})
    assert not own_box.alive()


def test_processes_of_all_kinds_end_in_a_reset(own_box):
    own_box.run("sleep 99 & setsid sleep 99 & (setsid setsid sleep 99 &)")
    own_box.reset()
    assert "sleep" not in own_box.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").output


def connect_to_nobody(box):
    with pytest.raises(SandboxError, match="refused"):
        tell(box, "connect", port=9)


def namespaces_of_processes(box):
    of_runner = f"/proc/{runner_pid(box.later)}/ns"
    return [os.readlink(f"{of_runner}/{kind}") for kind in ("pid_for_children", "mnt", "ipc")]


@pytest.mark.parametrize("use", [lambda box: box.run("true"), connect_to_nobody])
def test_namespaces_are_made_anew_only_after_use(runtime, own_box, use):
    """As that takes milliseconds. Docker's are not made anew at all."""
    own_box.reset()
    before = namespaces_of_processes(own_box)
    own_box.write({"f": b"x"})
    own_box.kill_processes()
    own_box.reset()
    assert namespaces_of_processes(own_box) == before
    use(own_box)
    own_box.reset()
    assert (namespaces_of_processes(own_box) != before) == (runtime.name == "bubblewrap")

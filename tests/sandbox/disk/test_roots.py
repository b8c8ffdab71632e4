"""What a sandbox may do with a root on disk, and what is left of that afterwards."""

import dataclasses

import pytest

from ale_jax.sandbox import docker_runtime
from ale_jax.sandbox.api import SandboxError, SandboxStartError
from ale_jax.sandbox.blocking import wait_for
from ale_jax.sandbox.bubblewrap import BubblewrapRuntime
from ale_jax.sandbox.disk import roots
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.verify.verifier import Verifier, verify
from tests.sandbox.disk.conftest import SPEC

pytestmark = pytest.mark.heavy

AGENT = dataclasses.replace(SPEC, user="agent", writable=("/tests", "/opt/mine"))
# A package whose file belongs to another user, as many of a distribution's do.
INSTALL = """
mkdir -p p/DEBIAN p/usr/bin && printf '#!/bin/sh\\necho installed\\n' > p/usr/bin/thing
chmod 755 p/usr/bin/thing; chown 7:42 p/usr/bin/thing
printf "%s: %s\\n" Package thing Version 1 Architecture all Maintainer me \\
  Description x > p/DEBIAN/control
dpkg-deb --build p /tmp/thing.deb > /dev/null && apt-get install -qq /tmp/thing.deb > log 2>&1
thing; stat -c %u:%g /usr/bin/thing
"""


def test_a_package_is_installed_and_a_reset_undoes_all(disk_box):
    disk_box.reset()
    assert disk_box.run(INSTALL).output == "installed\n7:42\n", disk_box.run("cat log").output
    disk_box.run("rm -r /usr/share/bash-completion /etc/passwd; echo mine > ~/f")
    disk_box.reset()
    result = disk_box.run("thing; ls /work; grep -c agent /etc/passwd; pwd")
    assert result.output.endswith("thing: command not found\n1\n/work\n")


def test_the_agent_may_write_what_belongs_to_it(disk_runtime):
    with disk_runtime.start(AGENT, {}) as box:
        assert box.run("id -u; touch ~/f /tmp/f /tests/f /opt/mine/f; echo $?").output == (
            "1000\n0\n"
        )
        assert "Permission denied" in box.run("touch /usr/bin/f").output
        assert "Permission denied" in box.run("rm /etc/hosts").output


def test_no_file_gives_rights_and_no_device_can_be_made(disk_box):
    options = disk_box.run("grep ' / ' /proc/mounts").output
    assert "nosuid" in options and "nodev" in options
    assert "not permitted" in disk_box.run("mknod ~/null c 1 3").output
    assert disk_box.run("unshare --user true").exit_code != 0
    assert disk_box.run("ls -l /proc/self/fd | grep -c user:").output == "0\n"


def test_the_quota_holds_and_a_neighbour_does_not_notice(disk_box, disk_runtime):
    with disk_runtime.start(SPEC, {}) as neighbour:
        full = disk_box.run("head -c 100M /dev/urandom > /var/big; sync; stat -c %s /var/big")
        assert "Disk quota exceeded" in full.output
        assert 0 < int(full.output.split()[-1]) <= SPEC.disk_mb << 20
        many = disk_box.run(
            "rm /var/big; python3 -c '\nimport os\nfor i in range(10**6):\n"
            ' open(f"/var/{i}", "w").write("x" * 1000)\''
        )
        assert "Disk quota exceeded" in many.output
        assert neighbour.run("head -c 50M /dev/urandom > /var/big && echo done").output == "done\n"
        stats = wait_for(disk_box.later.stats())
        assert stats.disk_limit_bytes == SPEC.disk_mb << 20
        assert stats.disk_bytes <= stats.disk_limit_bytes


def test_a_snapshot_is_a_copy_of_everything_and_does_not_disturb(disk_box, disk_runtime):
    disk_box.run("variable=kept; sleep 1000 & echo first | tee /usr/bin/mark ~/f > /dev/null")
    snapshot = disk_box.snapshot()
    assert disk_box.run("echo $variable; jobs -r | wc -l").output == "kept\n1\n"
    disk_box.run("echo second | tee /usr/bin/mark > ~/f; rm /usr/bin/env")
    with disk_runtime.start(SPEC, {}) as other:
        other.restore(snapshot)
        assert other.run("cat /usr/bin/mark ~/f").output == "first\nfirst\n"
        other.run("echo third > ~/f")
    disk_box.restore(snapshot)
    assert disk_box.run("cat ~/f; env true; echo $?").output == "first\n0\n"
    wait_for(disk_runtime.forget(snapshot))


def test_a_snapshot_that_was_forgotten_or_is_of_another_kind_is_refused(disk_box, disk_runtime):
    disk_box.run("echo mine > f")
    snapshot = disk_box.snapshot()
    wait_for(disk_runtime.forget(snapshot))
    for refused in (snapshot, b"an archive"):
        with pytest.raises(SandboxError):
            disk_box.restore(refused)
        assert disk_box.run("cat f").output == "mine\n"
    with pytest.raises(SandboxError, match="was removed"):
        wait_for(disk_runtime.forget(snapshot))


def test_what_the_disk_cannot_hold_is_refused_and_others_go_on(disk_box, disk_runtime):
    with pytest.raises(SandboxStartError, match="the disk cannot hold 100000000 MB more"):
        disk_runtime.start(dataclasses.replace(SPEC, disk_mb=10**8), {})
    assert disk_box.run("echo still > f && cat f").output == "still\n"


def test_a_reset_keeps_the_network_policy_and_listeners(disk_runtime):
    async def greet(stream):
        await stream.send(b"hello\n")

    with disk_runtime.start(SPEC, {}) as box:
        wait_for(box.later.listen(4000, greet))
        box.reset()
        assert box.run("cat < /dev/tcp/127.0.0.1/4000").output == "hello\n"


def test_a_root_of_the_agent_is_not_verified(disk_box):
    with pytest.raises(ValueError, match="start it with user 'agent'"):
        verify(disk_box, Verifier({}, "true"))


def test_what_cannot_be_enforced_is_refused(monkeypatch):
    if reason := docker_runtime.probe(dataclasses.replace(SPEC, disk_mb=0)):
        pytest.skip(f"docker: {reason}")
    with pytest.raises(SandboxStartError, match="docker cannot limit a root on disk to 64 MB"):
        pick_runtime("docker", SPEC)
    monkeypatch.setattr(roots.os, "getuid", lambda: 1000)
    assert "run it as root" in roots.unavailable()


def test_auto_takes_the_runtime_that_has_disks(disk_runtime):
    assert isinstance(pick_runtime("auto", SPEC), BubblewrapRuntime)

"""What is left of roots on disk when their owner is killed: nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from ale_jax.sandbox.disk import roots
from tests.sandbox.test_death import wait_until

pytestmark = pytest.mark.heavy

OWNER = """
import sys, time
from tests.sandbox.disk.conftest import SPEC
from ale_jax.sandbox.bubblewrap import BubblewrapRuntime
box = BubblewrapRuntime(SPEC).start(SPEC, {})
box.run("head -c 10M /dev/urandom > /var/f; sleep 1000 &")
box.snapshot()
print("ready", flush=True)
time.sleep(1000)
"""


def backing_files() -> list[str]:
    found = Path("/sys/block").glob("loop*/loop/backing_file")
    return sorted(f"{path} {path.read_text()}" for path in found if path.exists())


def mounts() -> list[str]:
    """Of roots; others may start containers meanwhile, which are mounts as well."""
    listed = Path("/proc/mounts").read_text().splitlines()
    return [mount for mount in listed if str(roots.directory()) in mount]


def test_a_killed_owner_leaves_no_mount_and_no_device(disk_runtime):
    mounted, devices = mounts(), backing_files()
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE) as owner:
        assert owner.stdout.readline() == b"ready\n"
        own = set(backing_files()) - set(devices)
        assert own
        assert mounts() == mounted  # no mount is visible to others
        owner.kill()
    wait_until(lambda: not own.intersection(backing_files()))
    assert mounts() == mounted

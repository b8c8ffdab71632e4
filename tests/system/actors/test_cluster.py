"""Ray on this machine: ours alone, whatever else of Ray's runs here or was left."""

import subprocess
import sys

HOLD = """
import sys, ray
from ale_jax.system.actors.cluster import ray_cluster
with ray_cluster(1):
    print(ray.get_runtime_context().gcs_address, flush=True)
    sys.stdin.read()
"""


def _hold():
    return subprocess.Popen(
        [sys.executable, "-c", HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_runs_on_one_machine_have_a_cluster_each():
    first = _hold()
    addresses = [first.stdout.readline()]
    second = _hold()
    addresses.append(second.stdout.readline())
    for process in (first, second):
        _, errors = process.communicate("", timeout=60)
        assert process.returncode == 0, errors
    assert len(set(addresses)) == 2 and "" not in addresses


def test_a_cluster_that_was_killed_is_in_nobodys_way():
    killed = _hold()
    assert killed.stdout.readline()
    killed.kill()
    killed.communicate()
    after = _hold()
    assert after.stdout.readline(), after.communicate("", timeout=60)
    after.communicate("", timeout=60)
    assert after.returncode == 0

"""Ray on this machine: ours alone, whatever else of Ray's runs here or was left."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.heavy

LOSE = """
import os, signal, sys, time
from pathlib import Path
from ale_jax.errors import RolloutsFailed
from ale_jax.system.actors.cluster import ray_cluster
with ray_cluster(1) as cluster:
    cluster.check()
    children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    pids = [pid for each in children for pid in each.read_text().split()]
    programs = {p: Path(f"/proc/{p}/cmdline").read_text().partition("\\0")[0] for p in pids}
    (victim,) = [p for p, program in programs.items() if program.endswith(sys.argv[1])]
    os.kill(int(victim), signal.SIGKILL)
    while True:
        time.sleep(0.1)
        try:
            cluster.check()
        except RolloutsFailed as error:
            print(error, flush=True)
            break
print("left")
"""
HOLD = """
import sys, ray
from ale_jax.system.actors.cluster import ray_cluster
with ray_cluster(1):
    print(ray.get_runtime_context().gcs_address, flush=True)
    sys.stdin.read()
"""
# SIGTERM arrives when Ray's C++ code has put its handler in place but ray.init() has not returned.
TOLD = """
import os, signal, time, ray
from ale_jax.system.actors.cluster import RESTORE_S, ray_cluster
def init(**options):
    begin(**options)
    time.sleep(100 * RESTORE_S)
    os.kill(os.getpid(), signal.SIGTERM)
    while not told:
        time.sleep(RESTORE_S)
told, begin, ray.init = [], ray.init, init
signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
with ray_cluster(1):
    print(told)
"""


def _hold():
    return subprocess.Popen(
        [sys.executable, "-c", HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _end(process):
    _, errors = process.communicate("", timeout=60)
    assert process.returncode == 0, errors


def test_runs_on_one_machine_have_a_cluster_each_and_one_that_was_killed_is_in_nobodys_way():
    first, second = _hold(), _hold()
    addresses = {first.stdout.readline(), second.stdout.readline()}
    assert len(addresses) == 2 and "" not in addresses
    first.kill()
    first.communicate()
    _end(second)
    after = _hold()
    assert after.stdout.readline()
    _end(after)


@pytest.mark.parametrize(
    ("victim", "reason"),
    [
        ("gcs_server", "Ray's head ended"),
        pytest.param("raylet/raylet", "(raylet) ended", marks=pytest.mark.slow),
    ],
)
def test_a_cluster_that_is_gone_is_noticed_and_left(victim, reason):
    result = subprocess.run(
        [sys.executable, "-c", LOSE, victim], capture_output=True, text=True, timeout=120
    )
    said = result.stdout.splitlines()
    assert result.returncode == 0 and said[-1] == "left", result.stderr
    (error,) = (line for line in said if reason in line)  # beside what Ray itself says
    assert "the same command continues" in error


def test_our_handler_hears_sigterm_while_ray_starts():
    result = subprocess.run([sys.executable, "-c", TOLD], capture_output=True, text=True)
    assert result.returncode == 0 and result.stdout == "[15]\n", result.stderr

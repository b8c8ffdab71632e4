"""Sandboxes that die under their owner, and owners that die before their sandboxes."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time

import docker
import pytest

from ale_jax.sandbox import bubblewrap, cgroups
from ale_jax.sandbox.api import SandboxLost
from ale_jax.sandbox.cgroups import Owner
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.spec import SandboxSpec
from benchmarks.sandbox.host_view import (
    host_pids,
    is_gone,
    kill_machine,
    kill_runner,
    leftovers,
    runner_pid,
)
from tests.sandbox.conftest import SPEC

pytestmark = [pytest.mark.each_runtime, pytest.mark.heavy]

OWNER_SCRIPT = """
import sys, time
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.sandbox.cgroups import Owner
from ale_jax.sandbox.runtime import pick_runtime
spec = SandboxSpec(memory_mb=96)
sandbox = pick_runtime(sys.argv[1], spec).start(spec, {})
print(Owner.current(), flush=True)
sandbox.run("sleep 60", timeout=60)
"""


def wait_until(condition) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("kill", [kill_machine, kill_runner])
@pytest.mark.parametrize(
    "operation",
    [
        lambda box: box.run("true"),
        lambda box: box.read("f"),
        lambda box: box.write({"f": b"x" * (1 << 20)}),
        lambda box: box.snapshot(),
        lambda box: box.reset(),
    ],
    ids=["run", "read", "write", "snapshot", "reset"],
)
def test_dead_sandbox_is_reported_by_the_next_operation(own_box, kill, operation):
    pid = runner_pid(own_box.later)
    kill(own_box.later)
    wait_until(lambda: is_gone(pid))
    with pytest.raises(SandboxLost, match=r"gone|broken"):
        operation(own_box)
    assert not own_box.alive()
    with pytest.raises(SandboxLost):
        own_box.run("true")


@pytest.mark.parametrize("kill", [kill_machine, kill_runner])
def test_death_ends_a_command_that_is_running(own_box, kill):
    killer = threading.Timer(0.2, kill, [own_box.later])
    killer.start()
    with pytest.raises(SandboxLost):
        own_box.run("sleep 60", timeout=60)
    killer.join()


def test_close_ends_a_command_of_another_thread(own_box):
    closer = threading.Timer(0.2, own_box.close)
    closer.start()
    with pytest.raises(SandboxLost):
        own_box.run("sleep 60", timeout=60)
    closer.join()


def test_sandbox_outlives_the_object_that_started_it():
    if reason := bubblewrap.probe(SPEC):
        pytest.skip(f"bubblewrap: {reason}")
    sandbox = pick_runtime("bubblewrap", SPEC).start(SPEC, {})
    gc.collect()
    time.sleep(0.2)
    with sandbox:
        assert sandbox.run("echo alive").output == "alive\n"


def test_frozen_runner_is_given_up(own_box, monkeypatch):
    monkeypatch.setattr("ale_jax.sandbox.async_sandbox.RUN_GRACE_S", 0.2)
    os.kill(runner_pid(own_box.later), signal.SIGSTOP)
    with pytest.raises(SandboxLost, match="no answer to 'run'"):
        own_box.run("true", timeout=0.2)
    assert not own_box.alive()


def test_close_leaves_nothing(runtime):
    sandbox = runtime.start(SPEC, {})
    sandbox.run("setsid sleep 1234 & sleep 1234 &")
    pids = host_pids(sandbox.later)
    assert len(pids) >= 4 and sandbox.alive()
    sandbox.close()
    sandbox.close()
    assert not sandbox.alive()
    wait_until(lambda: all(is_gone(pid) for pid in pids))


def test_starting_and_closing_leaks_no_descriptor(runtime):
    def cycle() -> None:
        with runtime.start(SPEC, {}) as sandbox:
            sandbox.run("true")

    cycle()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(4):
        cycle()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_sandbox_dies_with_its_owner(runtime):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER_SCRIPT, runtime.name], stdout=subprocess.PIPE, text=True
    )
    name = owner.stdout.readline().strip()
    time.sleep(0.2)  # into the command
    assert leftovers(runtime.name, name)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    runtime.reap()
    wait_until(lambda: not leftovers(runtime.name, name))


def test_reap_spares_the_living(runtime, box):
    runtime.reap()
    assert box.run("echo alive").output == "alive\n"


def test_reap_removes_containers_of_dead_owners_only(runtime):
    if runtime.name != "docker":
        pytest.skip("containers are Docker's")
    api = docker.from_env().api
    me = Owner.current()
    labels = {
        "dead": {"ale.owner": str(Owner(me.boot, me.namespace, me.pid, me.start + 1))},
        "living": {"ale.owner": str(me)},
        "elsewhere": {"ale.owner": str(Owner("other-boot", 1, 1, 1))},
        "overdue": {"ale.owner": str(Owner("other-boot", 1, 1, 1)), "ale.deadline": "1"},
        "not ours": {"ale.owner": "somebody"},
    }
    later = {"ale.deadline": str(int(time.time()) + 1000)}
    made = {
        name: api.create_container(SPEC.image, ["true"], labels=later | each)["Id"]
        for name, each in labels.items()
    }
    try:
        runtime.reap()
        left = {each["Id"] for each in api.containers(all=True)}
        assert {name for name, each in made.items() if each in left} == {
            *("living", "elsewhere", "not ours")
        }
    finally:
        for container in made.values():
            with contextlib.suppress(docker.errors.NotFound):
                api.remove_container(container, force=True, v=True)


def test_reap_removes_control_groups_of_dead_owners_only(runtime):
    if runtime.name != "bubblewrap" or "cgroup" not in runtime.capabilities["memory"]:
        pytest.skip("control groups are bubblewrap's, and only root makes them")
    hierarchy, me = cgroups.find(), Owner.current()
    dead = Owner(me.boot, me.namespace, me.pid, me.start + 1)
    groups = {
        owner: hierarchy.create(f"{cgroups.PREFIX}{owner}-reaptest", SandboxSpec())
        for owner in (dead, me, Owner("other-boot", 1, 1, 1))
    }
    try:
        runtime.reap()  # how many is counted in test_cgroups: beside us others may reap as well
        left = [owner for owner, group in groups.items() if group.directories[0].exists()]
        assert left == [me, Owner("other-boot", 1, 1, 1)]
    finally:
        for group in groups.values():
            group.remove()

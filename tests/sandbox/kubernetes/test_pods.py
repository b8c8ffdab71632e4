"""Pods as sandboxes, run by gVisor as a node would: what is posted is what runs."""

import asyncio
import dataclasses
import json
import signal
import subprocess
import sys
import time

import pytest

from ale_jax.sandbox import toolkit
from ale_jax.sandbox.api import SandboxLost, SandboxStartError
from ale_jax.sandbox.egress.policy import EgressPolicy
from ale_jax.sandbox.kubernetes import runtime
from ale_jax.sandbox.kubernetes.machine import until_it_runs
from ale_jax.sandbox.sdk.login import ServiceLogin
from ale_jax.sandbox.sdk.service_runtime import ServiceRuntime
from tests.sandbox.kubernetes.conftest import POD
from tests.sandbox.service.conftest import ANN, over
from tests.sandbox.upstream import CALL, upstream

pytestmark = pytest.mark.heavy
PORT = 4000
LEAVES = """
import json, sys
from pathlib import Path
from ale_jax.sandbox.kubernetes import cluster
from ale_jax.sandbox.kubernetes.runtime import KubernetesRuntime
from ale_jax.sandbox.spec import SandboxSpec
cluster.ACCOUNT, spec = Path(sys.argv[1]), SandboxSpec.from_json(json.loads(sys.argv[2]))
box = KubernetesRuntime(spec).start(spec, {})
print(box.run("id -u").output, end="", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def box(node, pods):
    with pods.start(POD, {}) as box:
        yield box


def test_a_pod_is_a_sandbox_like_any_other(node, box):
    (name,) = node.pods
    assert box.run("cd /tmp; X=5; id -u; dmesg").output.startswith(
        "1000\n[    0.000000] Starting gVi"
    )
    assert box.run("echo $PWD $X").output == "/tmp 5\n"
    box.write({"a/b": b"one\n"})
    saved = box.snapshot()
    assert box.exec("cat; echo $Y >&2", stdin=b"in", env={"Y": "1"}).stderr == "1\n"
    assert box.run("touch /usr/x /dev/x /sys/x /.ale/x").output.count("touch: ") == 4
    box.run("echo x > /tmp/x; echo x > /dev/shm/x; sleep 100 & (setsid sleep 101 &)")
    box.reset()
    look = "echo $PWD $X; cat /tmp/x /dev/shm/x a/b 2> /dev/null; pgrep sleep"
    assert box.run(look).output == "/work\n"
    box.restore(saved)
    assert box.read("a/b") == b"one\n"
    with upstream("hello\n") as port, box.relay(PORT, "127.0.0.1", port):
        assert box.run(CALL).output == "hello\nmore\n"
    assert box.alive() and [*node.pods] == [name] and not node.deleted
    box.renew()
    assert node.deleted == [name] and len(node.pods) == 1
    assert box.run("ls").output == ""
    box.close()
    box.close()
    assert not node.pods and not box.alive()


def test_its_limits_hold_where_the_kernel_has_none(node, pods):
    spec = dataclasses.replace(POD, memory_mb=256, pids=32)
    with pods.start(spec, {}) as box:
        many = box.run("for i in $(seq 60); do sleep 60 & done; sleep 9", timeout=8)
        assert (many.exit_code, many.timed_out) == (137, False)
        assert box.run("pgrep -c sleep").output == "0\n"
        hoard = "import time; x = bytearray(150 << 20); time.sleep(3)"
        # By pids: of a job that ended before it is waited for, bash forgets the status.
        line = f"python3 -c '{hoard}' & a=$!; python3 -c '{hoard}' & b=$!; wait $a; a=$?; wait $b"
        assert sorted(box.run(f"{line}; echo $a $?", timeout=8).output.split()[-2:]) == ["0", "137"]
        full = box.run("head -c 9M /dev/zero > x; stat -c %s x; df -B1M --output=size /work")
        assert "No space left" in full.output and full.output.split()[-1] == "8"


def test_its_network_leads_to_the_proxy_only(node, pods):
    spec = dataclasses.replace(POD, network=EgressPolicy("allowlist", ("pypi.org",)))
    with pods.start(spec, {}) as box:
        answer = box.run("python3 -c 'import os; print(os.environ[\"http_proxy\"])'").output
        assert answer == "http://127.0.0.1:3128\n"
        told = "import urllib.request as u; u.urlopen('http://arxiv.org/')"
        assert "403" in box.exec(["python3", "-c", told], timeout=9).stderr


def test_a_network_that_policies_do_not_bind_is_found_out(node, pods, monkeypatch):
    monkeypatch.setattr(runtime, "TRY_S", 0.5)
    node.network = "host"
    with pytest.raises(SandboxStartError, match=r"a sandbox reaches 127\.0\.0\.1:.* install a"):
        pods.start(POD, {})
    assert not node.pods


def test_directories_of_the_image_that_cannot_be_copied_are_refused(node, pods):
    spec = dataclasses.replace(POD, writable=("/tests", "/data"))
    with pytest.raises(SandboxStartError, match="the image has files in /data, which a pod cannot"):
        pods.start(spec, {})
    assert not node.pods
    spec = dataclasses.replace(POD, writable=("/tests",))
    with pods.start(spec, {}) as box:
        box.replace_directory("/tests", {"a": b"x"})
        assert box.run("stat -c '%U %a' /tests 2>&1; cat /tests/a").output.endswith("x")


def test_a_pod_ends_with_its_owner_and_is_reaped(node, pods):
    line = [sys.executable, "-c", LEAVES, str(node.account), json.dumps(POD.to_json())]
    with subprocess.Popen(line, stdin=-1, stdout=-1, text=True) as owner:
        assert owner.stdout.readline() == "1000\n"
        (pod,) = node.pods.values()
        assert pods.reap() == 0
        owner.send_signal(signal.SIGKILL)
    while pod.status()["phase"] != "Succeeded":
        time.sleep(0.05)
    assert pods.reap() == 1 and not node.pods


def test_a_run_elsewhere_plays_in_pods_through_a_service_of_the_cluster(node, pods):
    with over(pods) as service:
        with ServiceRuntime(service.url, ServiceLogin(ANN)).start(POD, {"role": "test"}) as box:
            (pod,) = node.pods.values()
            assert json.loads(pod.metadata["annotations"]["ale-jax/labels"])["role"] == "test"
            assert "Starting gVisor" in box.run("echo x > x; dmesg").output
            box.reset()
            assert box.run("ls").output == ""
        assert not node.pods


@pytest.mark.parametrize("found", ["as it comes", "ended before we look", "ended before we attach"])
def test_a_runner_that_cannot_start_says_why(node, pods, monkeypatch, found):
    monkeypatch.setattr(toolkit, "environment", lambda: {"PYTHONHOME": "/nothing"})

    async def until_it_ended(cluster, name):
        while node.pods[name].process.returncode is None:
            await asyncio.sleep(0.05)
        if found == "ended before we look":
            await until_it_runs(cluster, name)

    if found != "as it comes":
        monkeypatch.setattr(runtime, "until_it_runs", until_it_ended)
    with pytest.raises(SandboxStartError, match="No module named 'encodings'") as refused:
        pods.start(POD, {})
    assert str(refused.value).count("No module named") == 1 and "exit code 1" in str(refused.value)
    assert not node.pods


def test_why_a_pod_was_lost_is_told(node, pods, caplog):
    evicted = {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "The node was low on resource: memory.",
    }
    with pods.start(POD, {}) as box:
        (pod,) = node.pods.values()
        pod.evict(evicted)
        with pytest.raises(SandboxLost, match="gone: Evicted: The node was low on resource: mem"):
            box.run("true")
        assert not box.alive() and not node.pods
    with pods.start(POD, {}) as box:
        (pod,) = node.pods.values()
        node.pods.clear()
        pod.evict(None)
        with pytest.raises(SandboxLost, match="the pod was deleted"):
            box.run("true")
    assert not caplog.records, "to delete what is deleted already is no trouble"

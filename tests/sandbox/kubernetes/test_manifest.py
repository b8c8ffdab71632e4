"""What is posted for a sandbox, what is refused, and what happens to pods that never run."""

import asyncio
import dataclasses
import json

import pytest

from ale_jax.sandbox.api import ImageMissing, SandboxStartError
from ale_jax.sandbox.datasets import Datasets
from ale_jax.sandbox.kubernetes import machine, manifest
from ale_jax.sandbox.kubernetes.cluster import Cluster
from ale_jax.sandbox.kubernetes.manifest import image_of
from ale_jax.sandbox.kubernetes.runtime import KubernetesRuntime
from ale_jax.sandbox.runtime import pick_runtime
from tests.rows import each_row
from tests.sandbox.kubernetes.conftest import IMAGE, POD, POLICY, TOOLS_IMAGE


def waiting(reason, **fields):
    state = {"waiting": {"reason": reason} | fields}
    return {"phase": "Pending", "containerStatuses": [{"state": state}]}


UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient memory.",
        }
    ],
}


def posted(server, pods, spec, labels=None):
    """The manifest of a sandbox whose start fails at once."""
    server.hold = waiting("InvalidImageName")
    with pytest.raises(ImageMissing):
        pods.start(spec, labels or {})
    return server.posted[-1]


@pytest.mark.heavy
def test_the_pod_has_a_kernel_of_its_own_and_no_more_rights_than_its_runner_needs(server, pods):
    pod = posted(server, pods, POD, {"for": "a trial / of mine"})
    spec = pod["spec"]
    (sandbox,) = spec["containers"]
    assert spec["runtimeClassName"] == "gvisor"
    assert pod["metadata"]["labels"] == POLICY["spec"]["podSelector"]["matchLabels"]
    assert json.loads(pod["metadata"]["annotations"]["ale-jax/labels"]) == {
        "for": "a trial / of mine"
    }
    assert sandbox["image"] == IMAGE and spec["restartPolicy"] == "Never"
    assert spec["automountServiceAccountToken"] is spec["enableServiceLinks"] is False
    assert spec["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert sandbox["securityContext"] == {
        "runAsUser": 0,
        "runAsGroup": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": ["SETUID", "SETGID", "SETPCAP", "KILL"]},
    }
    assert sandbox["stdin"] is sandbox["stdinOnce"] is True
    (prepare,) = spec["initContainers"]
    assert prepare["image"] == TOOLS_IMAGE
    assert prepare["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
    for forbidden in ("hostNetwork", "hostPID", "hostPath", "privileged"):
        assert forbidden not in json.dumps(pod)


@pytest.mark.heavy
def test_the_server_takes_only_what_is_a_pod(server, pods, monkeypatch):
    monkeypatch.setattr(manifest, "_security", lambda capabilities: {"capability": capabilities})
    with pytest.raises(SandboxStartError, match=r"'capability' was unexpected\) \(400\)"):
        pods.start(POD, {})


@pytest.mark.heavy
def test_the_limits_are_those_of_the_spec_with_its_files_and_its_runner(server, pods):
    spec = dataclasses.replace(
        POD, memory_mb=256, files_mb=16, cpus=1.5, writable=("/tests",), runtime="kata"
    )
    spec = posted(server, pods, spec)["spec"]
    (sandbox,) = spec["containers"]
    assert spec["runtimeClassName"] == "kata"
    limits = {"memory": f"{256 + 4 * 16 + 128}Mi", "cpu": "1500m"}
    assert sandbox["resources"] == {"limits": limits, "requests": limits}
    memory = {"medium": "Memory", "sizeLimit": "16Mi"}
    sizes = {each["name"]: each["emptyDir"] for each in spec["volumes"]}
    places = {each["mountPath"]: sizes[each["name"]] for each in sandbox["volumeMounts"]}
    tools = {"/.ale": {"sizeLimit": "128Mi"}}
    assert places == dict.fromkeys(("/work", "/tests", "/tmp", "/dev/shm"), memory) | tools
    assert [each["name"] for each in spec["initContainers"]] == ["prepare", "look"]
    free = posted(server, pods, POD)["spec"]["containers"][0]["resources"]
    assert free["requests"] == free["limits"] | {"cpu": "100m"}


@pytest.mark.heavy
@each_row(
    "change, told",
    [
        ({"runtime": "runc"}, "'runc' would share the node's kernel: set it to 'runsc' or 'kata'"),
        ({"user": "root"}, "no user 'root': a pod's /dev and /proc cannot be made read-only"),
        ({"disk_mb": 100}, "cannot reset a root on disk of 100 MB: leave disk_mb at 0"),
        ({"ale_agent": True}, "put the agent into the image"),
        ({"image": "ale-shell"}, "image 'ale-shell' is in no registry"),
        ({"datasets": ("wiki",)}, r"mounts no data sets \(wiki\)"),
    ],
)
def test_what_a_pod_cannot_be_is_refused_by_name(change, told):
    spec = dataclasses.replace(POD, **change)
    with pytest.raises(SandboxStartError, match=told):
        KubernetesRuntime(spec)
    with pytest.raises(SandboxStartError, match=r"mounts no data sets \(wiki\)"):
        pick_runtime("kubernetes", POD, datasets=Datasets((("wiki", "/usr"),)))


@pytest.mark.heavy
def test_a_pod_that_never_runs_is_deleted_and_says_why(server, pods, monkeypatch):
    monkeypatch.setattr(machine, "READY_S", 0.2)
    monkeypatch.setattr(machine, "POLL_S", 0.05)
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    rows = [
        (UNSCHEDULABLE, SandboxStartError, "after 0.2 s: Unschedulable: 0/3 nodes are available"),
        ({"phase": "Pending"}, SandboxStartError, "after 0.2 s: it waits for a node"),
        (waiting("ErrImagePull"), SandboxStartError, "after 0.2 s: ErrImagePull"),
        (waiting("ImagePullBackOff", message="no such"), ImageMissing, "PullBackOff: no such"),
        (waiting("CreateContainerError", message="x"), SandboxStartError, "cannot start the pod"),
        (
            {"phase": "Failed", "containerStatuses": [{"state": ended}]},
            SandboxStartError,
            "the pod has ended: OOMKilled: exit code 137",
        ),
    ]
    for status, error, told in rows:
        server.hold = status
        with pytest.raises(error, match=told):
            pods.start(POD, {})
    assert not server.pods and len(server.deleted) == len(rows)
    server.hold = {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}
    with pytest.raises(SandboxStartError, match="no connection to its standard streams"):
        pods.start(POD, {})
    assert not server.pods


@pytest.mark.heavy
def test_a_start_that_is_given_up_leaves_no_pod(server, pods):
    server.hold = {"phase": "Pending"}

    async def give_up(begun):
        start = asyncio.create_task(pods.launch(POD, {}))
        while not begun():
            await asyncio.sleep(0.01)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start

    asyncio.run(give_up(lambda: server.pods))
    assert not server.pods and len(server.deleted) == 1
    server.delay = 0.3  # until the pod of a request is there
    asyncio.run(give_up(lambda: server.asked > 1))
    assert len(server.posted) == 2 and not server.pods


@pytest.mark.heavy
def test_whatever_the_server_refuses_is_a_failed_start(server, pods):
    server.refusal = 'pod rejected: RuntimeClass "gvisor" not found'
    with pytest.raises(SandboxStartError, match=r"could not start a pod: .*not found \(403\)"):
        pods.start(POD, {})
    (server.account / "token").write_text("an old one")
    with pytest.raises(SandboxStartError, match=r"Unauthorized \(401\)"):
        pods.start(POD, {})
    assert pods.reap() == 0
    (server.account / "token").write_text(server.token)
    server.refusal, server.hold = None, waiting("InvalidImageName")
    with pytest.raises(ImageMissing):  # the new token is read
        pods.start(POD, {})


@pytest.mark.heavy
def test_no_sandbox_starts_without_a_policy_that_forbids_all_traffic(server):
    pick_runtime("kubernetes", POD)
    rule = {"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}
    for change in (
        {"egress": [rule]},
        {"ingress": [{}]},
        {"policyTypes": ["Ingress"]},
        {"podSelector": {"matchLabels": {"app": "other"}}},
    ):
        server.policy = POLICY | {"spec": POLICY["spec"] | change}
        with pytest.raises(SandboxStartError, match="'ale-sandboxes' must forbid all traffic"):
            KubernetesRuntime(POD)
    server.policy = None
    with pytest.raises(SandboxStartError, match=r"not found \(404\); launch/kubernetes/pods.yaml"):
        KubernetesRuntime(POD)


@pytest.mark.heavy
def test_pods_that_nobody_waits_for_are_reaped(server, pods):
    old = {"creationTimestamp": "2026-01-01T00:00:00Z"}
    for name, phase, changed in (
        ("new", "Pending", {}),
        ("forgotten", "Pending", old),
        ("runs", "Running", old),
        ("over", "Succeeded", {}),
        ("failed", "Failed", {}),
        ("foreign", "Failed", {"labels": {"app": "other"}}),
    ):
        server.add(name, {"phase": phase}, changed)
    assert pods.reap() == 3 and {*server.pods} == {"new", "runs", "foreign"}


def test_who_is_in_no_pod_is_told_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("ALE_KUBERNETES_TOOLS", TOOLS_IMAGE)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SandboxStartError, match=r"in no pod with a service .*rollout\.runt"):
        KubernetesRuntime(POD)
    with pytest.raises(SandboxStartError, match="in no pod"):
        Cluster(tmp_path)
    monkeypatch.delenv("ALE_KUBERNETES_TOOLS")
    with pytest.raises(SandboxStartError, match="set ALE_KUBERNETES_TOOLS to the image"):
        KubernetesRuntime(POD)


def test_images_without_a_registry_are_those_of_the_operator(monkeypatch):
    spec = dataclasses.replace(POD, image="ale-shell")
    monkeypatch.setenv("ALE_KUBERNETES_REGISTRY", "registry/folder/")
    assert image_of(spec) == "registry/folder/ale-shell" and image_of(POD) == IMAGE

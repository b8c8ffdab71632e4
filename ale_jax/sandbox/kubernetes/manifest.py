"""The pod of a sandbox."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ale_jax.sandbox import agent_program, toolkit
from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.async_sandbox import PROGRAM
from ale_jax.sandbox.booting import AGENT_ID
from ale_jax.sandbox.spec import SHM, WORK, SandboxSpec

TOOLS, REGISTRY = "ALE_KUBERNETES_TOOLS", "ALE_KUBERNETES_REGISTRY"
LABEL, ROLE = "ale-jax.sandbox", "sandbox"  # of all pods that are sandboxes
LABELS = "ale-jax/labels"  # an annotation, since their values may be anything
CONTAINER = "sandbox"
RUNTIME_CLASSES = {"runsc": "gvisor", "kata": "kata"}  # by `spec.runtime`
# What the runner needs to start processes as the agent and to end them.
RUNNER_CAPABILITIES = ["SETUID", "SETGID", "SETPCAP", "KILL"]
RUNNER_MB = 128  # for the runner and what the kernel needs, beside the agent's memory
IDLE_CPUS = "100m"  # that a sandbox without a limit is sure to get
PACKED = "/opt/ale-toolkit"  # in the image of the tools
TOOLS_SIZE = "128Mi"
PARTS = "/parts"
# An owner that dies before it attaches leaves a runner that waits for nobody.
ATTACH_S = 600
WAITING = f"import select; select.select([0], [], [], {ATTACH_S})[0] and {PROGRAM}"
PREPARE = f"cp -a {PACKED}/. {toolkit.HOME} && chown {AGENT_ID}:{AGENT_ID} {PARTS}/*"
LOOK = """
for directory; do
    for found in "$directory"/* "$directory"/.[!.]*; do
        [ -e "$found" ] || continue
        echo "the image has files in $directory, which a pod cannot copy" > /dev/termination-log
        exit 1
    done
done; exit 0
"""
SMALL = {"cpu": "1", "memory": "128Mi"}

Object = dict[str, Any]


def refuse_unenforceable(spec: SandboxSpec) -> None:
    """Errors: SandboxStartError for what a pod cannot be, with the remedy."""
    if spec.runtime not in RUNTIME_CLASSES:
        raise SandboxStartError(
            f"kubernetes: runtime {spec.runtime!r} would share the node's kernel: set it to "
            f"{' or '.join(map(repr, RUNTIME_CLASSES))}"
        )
    if spec.user != "agent":
        raise SandboxStartError(
            f"kubernetes has no user {spec.user!r}: a pod's /dev and /proc cannot be made "
            "read-only, so that it could leave something for the next episode; use 'agent', or a "
            "machine with Docker"
        )
    if spec.disk_mb:
        raise SandboxStartError(
            f"kubernetes cannot reset a root on disk of {spec.disk_mb} MB: leave disk_mb at 0, or "
            "use a machine with bubblewrap"
        )
    if spec.ale_agent:
        raise SandboxStartError(agent_program.BELONGS_IN_IMAGE)
    refuse_datasets(spec.datasets)


def refuse_datasets(names: Sequence[str]) -> None:
    """Errors: SandboxStartError, as pods that may mount a node's paths may mount all of them."""
    if names:
        raise SandboxStartError(
            f"kubernetes mounts no data sets ({', '.join(names)}): put them into the image, or use "
            "machines with Docker or bubblewrap"
        )


def tools_image() -> str:
    """Returns the image that has the runner's programs. Errors: SandboxStartError."""
    if image := os.environ.get(TOOLS):
        return image
    raise SandboxStartError(
        f"kubernetes: set {TOOLS} to the image that launch/kubernetes/Dockerfile makes"
    )


def image_of(spec: SandboxSpec) -> str:
    """Returns the name by which nodes pull the image. Errors: SandboxStartError."""
    if "/" in spec.image:
        return spec.image
    if registry := os.environ.get(REGISTRY):
        return f"{registry.rstrip('/')}/{spec.image}"
    raise SandboxStartError(
        f"kubernetes: image {spec.image!r} is in no registry: name one with its registry, as nodes "
        f"pull it, or set {REGISTRY} to the registry and folder that have it"
    )


def pod_of(name: str, spec: SandboxSpec, labels: Mapping[str, str], tools: str) -> Object:
    """Returns the manifest of the pod `name`.

    tools: as `tools_image` returns it. Errors: SandboxStartError.
    """
    mounts = {path: f"part-{number}" for number, path in enumerate([*spec.parts, SHM])}
    own = [{"name": volume, "mountPath": path} for path, volume in mounts.items()]
    tool_mount = {"name": "tools", "mountPath": toolkit.HOME}
    prepared = [{"name": v, "mountPath": f"{PARTS}/{n:03}"} for n, v in enumerate(mounts.values())]
    line = ["sh", "-c", PREPARE]
    begin = [_helper("prepare", tools, line, [tool_mount, *prepared], ["CHOWN"])]
    read_only = [tool_mount | {"readOnly": True}]
    if spec.writable:
        bash = toolkit.PROGRAM_COMMANDS["bash"]
        line = [*bash, "-c", LOOK, "bash", *spec.writable]
        begin.append(_helper("look", image_of(spec), line, read_only, []))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {LABEL: ROLE},
            "annotations": {LABELS: json.dumps(dict(labels))},
        },
        "spec": {
            "runtimeClassName": RUNTIME_CLASSES[spec.runtime],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "hostname": "sandbox",
            "dnsPolicy": "None",
            "dnsConfig": {"nameservers": ["127.0.0.1"]},
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "initContainers": begin,
            "containers": [_container(spec, [*own, *read_only])],
            "volumes": [
                {"name": "tools", "emptyDir": {"sizeLimit": TOOLS_SIZE}},
                *({"name": volume, "emptyDir": _memory(spec)} for volume in mounts.values()),
            ],
        },
    }


def _container(spec: SandboxSpec, mounts: list[Object]) -> Object:
    files = spec.files_mb * (len(spec.parts) + 1)  # which are in memory, too
    limits = {"memory": f"{spec.memory_mb + files + RUNNER_MB}Mi"}
    if spec.cpus:
        limits["cpu"] = f"{round(spec.cpus * 1000)}m"
    environment = toolkit.environment()
    return {
        "name": CONTAINER,
        "image": image_of(spec),
        "command": toolkit.python("-s", "-S", "-P", "-c", WAITING),
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "workingDir": WORK,
        # The runner ends when its owner, who is attached to it, does.
        "stdin": True,
        "stdinOnce": True,
        "resources": {"limits": limits, "requests": {"cpu": IDLE_CPUS} | limits},
        "securityContext": _security(RUNNER_CAPABILITIES),
        "volumeMounts": mounts,
    }


def _helper(
    name: str, image: str, command: list[str], mounts: list[Object], capabilities: list[str]
) -> Object:
    """A container that ends before the sandbox starts."""
    return {
        "name": name,
        "image": image,
        "command": command,
        "resources": {"limits": SMALL, "requests": {"cpu": IDLE_CPUS, "memory": SMALL["memory"]}},
        "securityContext": _security(capabilities),
        "volumeMounts": mounts,
    }


def _security(capabilities: list[str]) -> Object:
    return {
        "runAsUser": 0,
        "runAsGroup": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": capabilities},
    }


def _memory(spec: SandboxSpec) -> Object:
    return {"medium": "Memory", "sizeLimit": f"{spec.files_mb}Mi"}

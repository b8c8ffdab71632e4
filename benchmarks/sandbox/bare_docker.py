"""Times Docker itself for a container of the same kind: `docker run` and `docker exec`."""

from __future__ import annotations

import contextlib
import subprocess
import time
import uuid
from collections.abc import Mapping
from typing import Any

import docker
from docker.errors import NotFound

from ale_jax.sandbox.api import Runtime
from ale_jax.sandbox.spec import SandboxSpec

LIFE_S = "600"  # lifetime of a container that is not removed
# Fields of a container's HostConfig, and the options of `docker run` that set them.
SCALARS = {
    "IpcMode": "--ipc",
    "NetworkMode": "--network",
    "Memory": "--memory",
    "MemorySwap": "--memory-swap",
    "PidsLimit": "--pids-limit",
}
LISTS = {
    "CapAdd": "--cap-add",
    "CapDrop": "--cap-drop",
    "SecurityOpt": "--security-opt",
    "Binds": "--volume",
}


def container_of_a_sandbox(runtime: Runtime, spec: SandboxSpec) -> dict[str, Any]:
    """The daemon's description of a container that `runtime` has started for `spec`."""
    mark, api = uuid.uuid4().hex, docker.from_env().api
    with runtime.start(spec, {"benchmark": mark}):
        (found,) = api.containers(filters={"label": f"ale.benchmark={mark}"})
        container = api.inspect_container(found["Id"])
    container["HostConfig"]["Mounts"] = []  # its socket, which has been removed with it
    return container


def run_flags(container: Mapping[str, Any]) -> list[str]:
    """The options with which `docker run` starts a container like this one."""
    host, config = container["HostConfig"], container["Config"]
    flags = ["--rm", "--interactive", f"--log-driver={host['LogConfig']['Type']}"]
    flags += [f"--hostname={config['Hostname']}", f"--user={config['User']}"]
    flags += [f"--workdir={config['WorkingDir']}"]
    flags += [f"{option}={host[field]}" for field, option in SCALARS.items()]
    flags += [f"{option}={each}" for f, option in LISTS.items() for each in host[f] or []]
    flags += [f"--tmpfs={path}:{how}" for path, how in host["Tmpfs"].items()]
    return [*flags, "--read-only"] if host["ReadonlyRootfs"] else flags


def run_ms(flags: list[str], image: str) -> float:
    """Milliseconds from `docker run` to the container's first line of output; its end does not
    count. The time includes the start of the `docker` program."""
    began = time.perf_counter()
    line = ["docker", "run", *flags, image, "echo", "up"]
    with subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"up\n"
        return 1e3 * (time.perf_counter() - began)


def library_run_ms(container: Mapping[str, Any]) -> float:
    """The same without the `docker` program: only its requests to the daemon."""
    api, config = docker.from_env().api, container["Config"]
    began = time.perf_counter()
    id = api.create_container(
        config["Image"],
        ["echo", "up"],
        user=config["User"],
        hostname=config["Hostname"],
        working_dir=config["WorkingDir"],
        host_config=container["HostConfig"],
    )["Id"]
    try:
        output = api.attach(id, stream=True)
        api.start(id)
        assert next(iter(output)) == b"up\n"
        took = 1e3 * (time.perf_counter() - began)
    except BaseException:
        api.remove_container(id, force=True)
        raise
    with contextlib.suppress(NotFound):  # it has already ended and been removed
        api.wait(id, condition="removed")
    return took


def exec_ms(image: str, count: int) -> tuple[float, ...]:
    """Milliseconds of each `docker exec`, which a sandbox without a session would use."""
    api = docker.from_env().api
    host = api.create_host_config(network_mode="none", init=True, auto_remove=True)
    container = api.create_container(image, ["sleep", LIFE_S], host_config=host)["Id"]
    try:
        api.start(container)
        return tuple(_exec_ms(api, container) for _ in range(1 + count))[1:]
    finally:
        api.remove_container(container, force=True, v=True)


def _exec_ms(api: docker.APIClient, container: str) -> float:
    began = time.perf_counter()
    process = api.exec_create(container, ["bash", "-c", "true"])["Id"]
    api.exec_start(process)
    assert api.exec_inspect(process)["ExitCode"] == 0
    return 1e3 * (time.perf_counter() - began)

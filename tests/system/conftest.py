"""Ray, started once for the module that asks for it, and the sandbox runtimes of this machine."""

import pytest

from ale_jax.sandbox import bubblewrap, docker_runtime
from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.system.cluster import ray_cluster

SPEC = SandboxSpec(memory_mb=128, pids=48, files_mb=8, command_seconds=5.0)
PROBES = {"bubblewrap": bubblewrap.probe, "docker": docker_runtime.probe}


@pytest.fixture(scope="module")
def ray():
    with ray_cluster(actors=2):
        yield


@pytest.fixture(scope="session")
def runtime_name():
    try:
        return pick_runtime("auto", SPEC).name
    except SandboxStartError as error:
        pytest.skip(f"needs a sandbox runtime: {error}")


@pytest.fixture(scope="session", params=PROBES)
def each_runtime(request):
    if reason := PROBES[request.param](SPEC):
        pytest.skip(f"{request.param}: {reason}")
    return request.param

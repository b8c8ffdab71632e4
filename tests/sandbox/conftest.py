"""Both runtimes, each with one sandbox that the tests share: nothing must outlive a reset."""

import pytest

from ale_jax.sandbox import bubblewrap, docker_runtime
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.spec import SandboxSpec

SPEC = SandboxSpec(memory_mb=96, pids=48, files_mb=8, command_seconds=5.0, output_bytes=1000)
PROBES = {"bubblewrap": bubblewrap.probe, "docker": docker_runtime.probe}


@pytest.fixture(scope="session", params=PROBES)
def runtime(request):
    if reason := PROBES[request.param](SPEC):
        pytest.skip(f"{request.param}: {reason}")
    return pick_runtime(request.param, SPEC)


@pytest.fixture(scope="session")
def shared_box(runtime):
    with runtime.start(SPEC, {"run": "tests"}) as sandbox:
        yield sandbox


@pytest.fixture
def box(shared_box):
    shared_box.reset()
    return shared_box


@pytest.fixture
def own_box(runtime):
    """A sandbox that the test may break."""
    with runtime.start(SPEC, {"run": "tests"}) as sandbox:
        yield sandbox


def processes(box) -> str:
    """The command lines of all that runs in `box`."""
    result = box.run("tr '\\0' ' ' < <(cat /proc/[0-9]*/cmdline)")
    assert "bash" in result.output, result
    return result.output

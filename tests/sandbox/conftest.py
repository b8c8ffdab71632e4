"""Sandboxes of both runtimes. Tests share one of each, since nothing must outlive a reset."""

import io
import os
import tarfile

import docker
import pytest

from ale_jax.sandbox import docker_runtime
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.spec import SandboxSpec
from tests.runtimes import PROBES, play_on

SPEC = SandboxSpec(memory_mb=96, pids=48, files_mb=8, command_seconds=5.0, output_bytes=1000)
EMPTY = f"ale-test-empty-{os.getpid()}"  # other processes run tests beside us


def pytest_generate_tests(metafunc):
    """Tests marked `each_runtime`, what a runtime promises, play on both runtimes. The others play
    on one: they are about the runner and what is above it, which is the same code on both."""
    on_both = metafunc.definition.get_closest_marker("each_runtime") is not None
    for fixture in {"runtime", "pytest_runtime"} & set(metafunc.fixturenames):
        play_on(metafunc, fixture, on_both)


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
def empty_image():
    """The name of an image that holds nothing at all."""
    if reason := docker_runtime.probe(SPEC):
        pytest.skip(f"docker: {reason}")
    nothing = io.BytesIO()
    tarfile.open(fileobj=nothing, mode="w").close()
    api = docker.from_env().api
    api.import_image_from_data(nothing.getvalue(), repository=EMPTY)
    yield EMPTY
    api.remove_image(EMPTY, force=True)


def processes(box) -> str:
    """The command lines of all that runs in `box`."""
    result = box.exec("tr '\\0' ' ' < <(cat /proc/[0-9]*/cmdline)")
    assert "bash" in result.stdout, result
    return result.stdout


def lease(path: str) -> str:
    """A command that leaves a process behind which never gives up its lease of the file `path`."""
    program = (
        "import fcntl, signal; signal.signal(signal.SIGIO, signal.SIG_IGN); "
        f'file = open("{path}", "r+"); fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK); '
        'print("leased", flush=True); signal.pause()'
    )
    return f"grep -m 1 leased < <(python3 -c '{program}')"

"""Sandboxes with a root on disk. Only bubblewrap has them."""

import pytest

from ale_jax.sandbox import bubblewrap, docker_runtime
from ale_jax.sandbox.bubblewrap import BubblewrapRuntime
from ale_jax.sandbox.spec import SandboxSpec

SPEC = SandboxSpec(user="root", disk_mb=64, memory_mb=256, pids=64, command_seconds=60.0)


@pytest.fixture(scope="session")
def disk_runtime():
    # The image comes from Docker's daemon, although the sandbox does not run there.
    image = SandboxSpec(image=SPEC.image)
    if reason := bubblewrap.probe(SPEC) or docker_runtime.probe(image):
        pytest.skip(f"bubblewrap on disk: {reason}; type: make runtimes")
    return BubblewrapRuntime(SPEC)


@pytest.fixture
def disk_box(disk_runtime):
    with disk_runtime.start(SPEC, {}) as box:
        yield box

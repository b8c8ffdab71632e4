"""The real sandbox of these tests. Slow commands are cut after 2 seconds."""

import pytest

from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.spec import SandboxSpec


@pytest.fixture(scope="session")
def sandbox():
    spec = SandboxSpec(command_seconds=2.0)
    try:
        runtime = pick_runtime("auto", spec)
    except SandboxStartError as error:
        pytest.skip(f"needs a sandbox runtime: {error}")
    with runtime.start(spec, {"role": "test"}) as sandbox:
        yield sandbox

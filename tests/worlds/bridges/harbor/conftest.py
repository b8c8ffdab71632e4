"""The runtimes on which task folders are played."""

import pytest

from ale_jax.sandbox.spec import SandboxSpec
from tests.runtimes import picked, play_on


def pytest_generate_tests(metafunc):
    if "runtime" in metafunc.fixturenames:
        play_on(metafunc, "runtime", both=True)


@pytest.fixture(scope="session")
def runtime(request):
    return picked(request.param, SandboxSpec())

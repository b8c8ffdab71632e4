"""The sandbox runtimes that tests play on."""

import functools

import pytest

from ale_jax.sandbox import bubblewrap, docker_runtime
from ale_jax.sandbox.spec import SandboxSpec

PROBES = {"bubblewrap": bubblewrap.probe, "docker": docker_runtime.probe}


@functools.cache
def first_that_works() -> str:
    """The first name if none does, so that a test is skipped with that one's reason."""
    spec = SandboxSpec(memory_mb=96, pids=48)
    return next((name for name, probe in PROBES.items() if not probe(spec)), next(iter(PROBES)))


def play_on(metafunc, fixture: str, both: bool) -> None:
    """Parametrizes `fixture`, which is session-scoped, with a runtime's name, or with the names of
    both. What plays on the second as well is slow."""
    first = first_that_works()
    second = [pytest.param(name, marks=pytest.mark.slow) for name in PROBES if name != first]
    names = [first, *second] if both else [first]
    metafunc.parametrize(fixture, names, indirect=True, scope="session")

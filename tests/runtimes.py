"""The sandbox runtimes that tests play on."""

import contextlib
import functools

import pytest

from ale_jax.sandbox import bubblewrap, docker_runtime
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.sandbox.verify.verifier import REMEDY, has_pytest

PROBES = {"bubblewrap": bubblewrap.probe, "docker": docker_runtime.probe}


@functools.cache
def first_that_works() -> str:
    """The first name if none does, so that a test is skipped with that one's reason."""
    spec = SandboxSpec(memory_mb=96, pids=48)
    return next((name for name, probe in PROBES.items() if not probe(spec)), next(iter(PROBES)))


def picked(name: str, spec: SandboxSpec):
    """The runtime called `name`; the test is skipped if it does not work here."""
    if reason := PROBES[name](spec):
        pytest.skip(f"{name}: {reason}")
    return pick_runtime(name, spec)


@contextlib.contextmanager
def started_to_judge(runtime, spec: SandboxSpec):
    """A sandbox that has pytest; the test is skipped if it has not."""
    with runtime.start(spec, {"role": "test"}) as sandbox:
        if not has_pytest(sandbox):
            pytest.skip(f"{runtime.name}: {REMEDY}; or type: make runtimes")
        yield sandbox


def play_on(metafunc, fixture: str, both: bool) -> None:
    """Parametrizes `fixture`, which is session-scoped, with a runtime's name, or with the names of
    both. What plays on the second as well is slow."""
    first = first_that_works()
    second = [pytest.param(name, marks=pytest.mark.slow) for name in PROBES if name != first]
    names = [first, *second] if both else [first]
    metafunc.parametrize(fixture, names, indirect=True, scope="session")

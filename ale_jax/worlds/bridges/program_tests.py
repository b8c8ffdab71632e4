"""Programs judged in a sandbox by a row's tests, as HumanEval, MBPP and BigCodeBench write them."""

from __future__ import annotations

import dataclasses

from ale_jax.sandbox.api import JudgedSandbox, SandboxError
from ale_jax.sandbox.spec import WORK, SandboxSpec
from ale_jax.sandbox.verify.verifier import (
    REMEDY,
    REPORT,
    TESTS,
    has_pytest,
    judge,
    pytest_verifier,
)
from ale_jax.worlds.api import NoVerdictError, VerifierError

SPEC = SandboxSpec(
    memory_mb=1024, pids=128, files_mb=32, writable=(TESTS, REPORT), command_seconds=60.0
)
PROGRAM, TEST = "program.py", "test_row.py"
# The program has a module of its own, so that pytest takes none of its functions for tests. What
# the tests define is collected after that, and replaces what the program calls the same.
DRIVER = """
import sys, types

module = types.ModuleType("program")
sys.modules["program"] = module

def load(source, name):
    exec(compile(source, name, "exec"), module.__dict__)

def load_program():
    with open({program!r}) as file:
        load(file.read(), {program!r})
"""
CALLED = """
def test_row():
    load_program()
    for source in {tests!r}:
        load(source, "tests")
"""
COLLECTED = """
load_program()
before = dict(vars(module))
for source in {tests!r}:
    load(source, "tests")
globals().update((n, v) for n, v in vars(module).items() if before.get(n, load) is not v)
"""


@dataclasses.dataclass(frozen=True)
class ProgramTests:
    """The tests of a row, in order. are_collected: they define tests of pytest or unittest;
    otherwise running them is the test. seconds: that all may take."""

    sources: tuple[str, ...]
    are_collected: bool
    seconds: float

    def reward(self, program: str, control: str, sandbox: JudgedSandbox) -> float:
        """Returns 1.0 if a program passes all tests. control: a program of ours, which shows
        whether the tests or the program are at fault where there is no verdict.

        Raises:
          NoVerdictError: the tests have a verdict on `control`, but none on the program.
          VerifierError: they have none on `control` either.
        """
        path = f"{WORK}/{PROGRAM}"
        body = COLLECTED if self.are_collected else CALLED
        driver = DRIVER.format(program=path) + body.format(tests=self.sources)
        verifier = pytest_verifier({TEST: driver.encode()}, [TEST], WORK, self.seconds)

        def restore() -> None:
            sandbox.reset()
            sandbox.write({PROGRAM: control.encode()})

        try:
            # A lone surrogate cannot be in a file; what replaces it is no Python outside of texts.
            sandbox.write({PROGRAM: program.encode(errors="replace")})
            judgement = judge(sandbox, verifier, restore)
        except (SandboxError, OSError) as error:
            raise VerifierError(str(error)) from error
        if judgement.no_verdict:
            raise NoVerdictError(judgement.no_verdict)
        return judgement.reward


def prepare(sandbox: JudgedSandbox) -> None:
    """Empties a sandbox. ValueError, with the command that installs it, if it has no pytest."""
    if not has_pytest(sandbox):
        raise ValueError(f"the sandbox has no pytest to judge with: {REMEDY}")
    sandbox.reset()


def spec_of(spec: SandboxSpec) -> SandboxSpec:
    """Returns SPEC, with image, network and runtime of the run."""
    return dataclasses.replace(SPEC, image=spec.image, network=spec.network, runtime=spec.runtime)

"""Tries an image out: that it starts, does what agents need, and that its task can be judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from ale_jax.sandbox.api import Sandbox, SandboxError
from ale_jax.sandbox.spec import SandboxSpec

Start = Callable[[SandboxSpec], AbstractContextManager[Sandbox]]
# The score of a sandbox, in which the oracle is to act before (True) or nobody (False).
Judge = Callable[[Sandbox, bool], float]

CONTENT = b"written by the host: \xff"


def first_fault(start: Start, spec: SandboxSpec, judge: Judge | None) -> str | None:
    """The first thing that is wrong with an image, None if nothing is. Three sandboxes at most."""
    try:
        with start(spec) as sandbox:
            for fault in _faults(sandbox):
                return fault
        for oracle, wanted in ((True, 1.0), (False, 0.0)) if judge else ():
            with start(spec) as sandbox:
                if (score := judge(sandbox, oracle)) != wanted:
                    who = "the oracle" if oracle else "doing nothing"
                    return f"{who} scores {score} instead of {wanted:g}"
    except (SandboxError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _faults(sandbox: Sandbox) -> Iterator[str]:
    # With what the shell can do itself: an image need not hold any program.
    greeting = sandbox.run("echo $((6 * 7))")
    if (greeting.exit_code, greeting.output) != (0, "42\n"):
        yield f"'echo' gives {greeting.output!r:.200} and exit code {greeting.exit_code}"
    if (code := sandbox.run("(exit 3)").exit_code) != 3:
        yield f"exit code 3 arrives as {code}"
    sandbox.write({"trial/written": CONTENT})
    copied = sandbox.run('printf %s "$(<trial/written)" > trial/copied')
    if copied.exit_code or sandbox.read("trial/copied") != CONTENT:
        yield f"a file that was written cannot be copied: {copied.output!r:.200}"

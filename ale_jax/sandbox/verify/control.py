"""Finds out whose fault it is that a verifier gave no verdict: the agent's or the host's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ale_jax.sandbox.blocking import BlockingSandbox
from ale_jax.sandbox.verify.verifier import Verifier, VerifierFailed, verify


@dataclasses.dataclass(frozen=True)
class Judgement:
    """reward: 0 without a verdict. no_verdict: why there was none; empty if there was one."""

    reward: float
    no_verdict: str = ""


def judge(sandbox: BlockingSandbox, verifier: Verifier, restore: Callable[[], None]) -> Judgement:
    """Judges what the agent left behind. If there is no verdict, runs the same verifier on the
    untouched task, as a control. If the control has a verdict, the agent's work is the cause.

    The control runs at once, in the same sandbox, with the same time limit. Its outcome is not
    kept, because it says only what the host could do at that time.

    restore: resets the sandbox and prepares the initial state of the task.

    Raises:
      VerifierFailed: the control has no verdict either.
      SandboxError: the sandbox failed.
    """
    try:
        return Judgement(verify(sandbox, verifier).reward)
    except VerifierFailed as error:
        missing = error
    restore()
    try:
        verify(sandbox, verifier).reward  # noqa: B018, raises if the report has no reward
    except VerifierFailed as error:
        raise VerifierFailed(f"{missing} (and none of the untouched task: {error})") from missing
    return Judgement(0.0, str(missing))

"""What may end an episode beside the policy, and as which status."""

from __future__ import annotations

from ale_jax.agent.api import AgentError, PolicyError
from ale_jax.sandbox.api import SandboxError, SandboxStartError
from ale_jax.status import Status
from ale_jax.worlds.api import VerifierError
from ale_jax.worlds.checked import WorldError


class ReplayDivergedError(Exception):
    """Replaying a prefix turn did not lead to the same result as before."""


class NotReproducedError(Exception):
    """Replaying the episode's own replies did not give the same observations and reward."""


# The first match counts. Any other exception is a bug and is not caught.
_STATUSES: tuple[tuple[type[Exception], Status], ...] = (
    (SandboxStartError, Status.SANDBOX_START_FAILED),
    (SandboxError, Status.SANDBOX_LOST),
    (VerifierError, Status.VERIFIER_ERROR),
    (PolicyError, Status.MODEL_ERROR),
    (AgentError, Status.AGENT_FAILED),
    (ReplayDivergedError, Status.REPLAY_DIVERGED),
    (NotReproducedError, Status.NOT_REPRODUCED),
    (WorldError, Status.ENV_ERROR),
)
FAILURES = tuple(kind for kind, _ in _STATUSES)


def status_of(error: Exception) -> Status:
    """Returns the status of an episode that `error`, one of FAILURES, ended."""
    return next(status for kind, status in _STATUSES if isinstance(error, kind))

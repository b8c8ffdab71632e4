"""Sandboxes between two episodes."""

from __future__ import annotations

from ale_jax.sandbox.api import JudgedSandbox
from ale_jax.sandbox.spec import SandboxSpec


class IdleSandboxes:
    """Sandboxes that wait for an episode that needs their spec. Not thread-safe."""

    def __init__(self) -> None:
        self._waiting: list[tuple[SandboxSpec, JudgedSandbox]] = []  # for longest first

    def put(self, spec: SandboxSpec, sandbox: JudgedSandbox) -> None:
        """Adds a sandbox that nobody uses."""
        self._waiting.append((spec, sandbox))

    def take(self, spec: SandboxSpec) -> JudgedSandbox | None:
        """Returns a sandbox of this spec, if there is one."""
        for place in reversed(range(len(self._waiting))):
            if self._waiting[place][0] == spec:
                return self._waiting.pop(place)[1]
        return None

    def give_up(self) -> JudgedSandbox | None:
        """Returns the sandbox that has waited for longest, to be closed before another one is
        started. So there are never more of them than episodes at once."""
        return self._waiting.pop(0)[1] if self._waiting else None

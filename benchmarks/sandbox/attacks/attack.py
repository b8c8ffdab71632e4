"""The definition of an attack: something that is tried in a sandbox, and what must stop it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ale_jax.sandbox.api import ExecResult, Runtime
from ale_jax.sandbox.blocking import BlockingSandbox
from ale_jax.sandbox.spec import SandboxSpec

EVIDENCE_CHARS = 70
LOAD_S = 3.0
USERS = ("agent", "root")
AGENT = ("agent",)  # what root of a sandbox may do there
REFUSED_S = 3.0
NOT_FOUND = 127  # the attack's program is missing, so the attack was not tried


class Breach(Exception):
    """The attack succeeded, or could not be tried; the message says which."""


@dataclasses.dataclass(frozen=True)
class Arena:
    """Where attacks are played. box: the attacker's sandbox, which is new or has been reset.
    effort: 1.0 for full attacks; less for shorter and smaller attacks on shared resources (cores,
    memory)."""

    runtime: Runtime
    spec: SandboxSpec
    box: BlockingSandbox
    effort: float

    @property
    def load_seconds(self) -> float:
        return LOAD_S * self.effort

    def another(self, **changes: Any) -> AbstractContextManager[BlockingSandbox]:
        """Another sandbox, with the same spec except for `changes`."""
        return self.runtime.start(dataclasses.replace(self.spec, **changes), {"run": "attacks"})


@dataclasses.dataclass(frozen=True)
class Attack:
    """name: what is tried. stopped_by: what should stop it. play: tries it, and returns what was
    seen, or raises Breach. The caller must clean up after it. users: against whom it must fail."""

    name: str
    kind: str
    stopped_by: str
    play: Callable[[Arena], str]
    users: tuple[str, ...] = USERS


def refused(
    name: str, kind: str, command: str, stopped_by: str, users: tuple[str, ...] = USERS
) -> Attack:
    """An attack by a single command, which must fail."""

    def play(arena: Arena) -> str:
        return failure(arena.box.run(command, REFUSED_S))

    return Attack(name, kind, stopped_by, play, users)


def failure(result: ExecResult) -> str:
    """How a command failed. Errors: Breach, if it did not fail."""
    if result.exit_code in (0, NOT_FOUND):
        raise Breach(f"exit code {result.exit_code}: {evidence(result.output)}")
    return evidence(result.output) or f"exit code {result.exit_code}"


def evidence(text: str, line: int = 0) -> str:
    """A line of an output, by default the first one, truncated to fit a table."""
    lines = [each.strip() for each in text.splitlines() if each.strip()]
    return lines[line][-EVIDENCE_CHARS:] if lines else ""


def require(holds: bool, seen: str) -> str:
    """Returns `seen`. Errors: Breach, unless `holds`."""
    if not holds:
        raise Breach(seen)
    return seen


def require_alive(box: BlockingSandbox) -> None:
    """Errors: Breach, if the sandbox does not answer correctly."""
    answer = box.run("echo alive")
    require(answer.output == "alive\n", f"afterwards it says {answer.output!r:.60}")

"""A task as it is played, whichever format its folder has."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from ale_jax.sandbox.egress.policy import EgressPolicy
from ale_jax.worlds.bridges.harbor.dockerfile import Layout
from ale_jax.worlds.bridges.harbor.trees import Tree

TESTS, REPORT, SOLUTION, PUBLISHED = "/tests", "/logs/verifier", "/solution", "/logs/artifacts"
TEST, SOLVE, SETUP = "test.sh", "solve.sh", "setup.sh"
PUBLIC, NO_NETWORK, ALLOWLIST = "public", "no-network", "allowlist"


@dataclasses.dataclass(frozen=True)
class Reach:
    """Where connections may go. field: of the file, which says so."""

    mode: str = PUBLIC
    hosts: tuple[str, ...] = ()
    field: str = "environment.network_mode"

    def check(self) -> None:
        """ValueError for hosts that are none."""
        try:
            self._policy()
        except ValueError as error:
            raise ValueError(f"{self.field}: {error}") from None

    def policy(self, allowed: EgressPolicy) -> EgressPolicy:
        """Returns the policy of a sandbox. allowed: what the run lets its sandboxes reach, which is
        all that a public network is. ValueError for hosts beyond that."""
        if self.mode == PUBLIC:
            return allowed
        for host in self.hosts:
            if not (allowed.mode == "open" or host in allowed.allow or allowed.permits(host, 443)):
                raise ValueError(
                    f"{self.field}: the run's sandboxes may not reach {host!r:.80}, as their "
                    f"network is {allowed.mode!r}: allow it in sandbox.network"
                )
        return self._policy()

    def _policy(self) -> EgressPolicy:
        return EgressPolicy("allowlist", self.hosts) if self.hosts else EgressPolicy()


@dataclasses.dataclass(frozen=True)
class Health:
    """A command that has to succeed before the policy begins; times in seconds. Failures in the
    first `start_period` do not count, and `retries` in a row after it are the end."""

    command: str
    interval: float
    timeout: float
    start_period: float
    start_interval: float
    retries: int


@dataclasses.dataclass(frozen=True)
class Hook:
    """A command that is run before anything is judged, whether it succeeds or not. user: "" for
    that of the policy."""

    command: str
    seconds: float
    user: str = ""


@dataclasses.dataclass(frozen=True)
class Artifact:
    """What a separate verifier gets of the policy's files: one, or a directory without what the
    patterns of tar in `exclude` match. source: absolute."""

    source: str
    exclude: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Check:
    """How a phase is judged.

    tests: the files of /tests. pytest: the one that pytest runs and counts; "" if test.sh writes
    the reward. artifacts: that the fresh sandbox of a separate verifier gets. layout: what that
    begins with; None if the tests run in the policy's sandbox. image: of that sandbox, which then
    has /tests; "" for the policy's. workdir: where they run.
    """

    tests: Tree
    workdir: str
    seconds: float
    pytest: str = ""
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    reach: Reach = Reach()
    hooks: tuple[Hook, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    layout: Layout | None = None
    image: str = ""


@dataclasses.dataclass(frozen=True)
class Phase:
    """What is asked for, done and judged on its own: a step, or a task without steps.

    seconds: that the policy's commands may take together. prepared: files that are put into the
    working directory, whose setup.sh is run. solution: the files of /solution; None if there is
    none. min_reward: by name, below which the task ends.
    """

    name: str
    instruction: str
    check: Check
    seconds: float = math.inf
    reach: Reach = Reach()
    prepared: Tree = dataclasses.field(default_factory=dict)
    health: Health | None = None
    solution: Tree | None = None
    min_reward: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a task is played. image: "" for that of the run, in which `layout` is laid out.
    cpus: 0 for no limit. memory_mb, storage_mb: 0 if the task does not say."""

    layout: Layout
    image: str = ""
    user: str = "root"
    cpus: float = 0.0
    memory_mb: int = 0
    storage_mb: int = 0
    health: Health | None = None


@dataclasses.dataclass(frozen=True)
class HarborTask:
    """name: of the folder. final: the reward is that of the last phase, and not the mean of those
    that were judged. metadata: numbers and texts of the file, by name."""

    name: str
    place: Place
    phases: tuple[Phase, ...]
    final: bool = False
    solution_env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    metadata: Mapping[str, str | int | float] = dataclasses.field(default_factory=dict)

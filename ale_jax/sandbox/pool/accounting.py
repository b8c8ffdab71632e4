"""What sandboxes ask for, what a node has for them, and what they have used, by owner."""

from __future__ import annotations

import collections
import dataclasses
import math
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping

from ale_jax.sandbox import cgroups
from ale_jax.sandbox.spec import SandboxSpec

OWNER = "tenant"  # the label with the name of a sandbox's owner
# Between the owner's name and the rest of an id. Neither a name nor an id that a client chooses has
# it, so that no owner's id is ever taken by another's.
BEHIND_OWNER = "~"
FOR_SANDBOXES = 0.9  # of the memory; the rest is for the host and for this process


def owner_of(labels: Mapping[str, str]) -> str:
    """Empty: nobody in particular."""
    return labels.get(OWNER, "")


def new_id(labels: Mapping[str, str]) -> str:
    """Returns an id that no sandbox has, for one with these labels."""
    owner = owner_of(labels)
    return f"{owner}{BEHIND_OWNER if owner else ''}{uuid.uuid4().hex[:16]}"


@dataclasses.dataclass(frozen=True)
class Room:
    """An amount of everything that sandboxes take. cpus: a spec without a limit asks for none."""

    sandboxes: float = 0
    memory_mb: float = 0
    cpus: float = 0
    disk_mb: float = 0

    @classmethod
    def of(cls, spec: SandboxSpec, count: int = 1) -> Room:
        disk_mb = spec.disk_mb or len(spec.parts) * spec.files_mb
        return cls(count, count * spec.memory_mb, count * spec.cpus, count * disk_mb)

    def __add__(self, other: Room) -> Room:
        # Rounded, so that fractions of a cpu add up to the same sum in any order.
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Room(*(round(one + another, 6) for one, another in pairs))

    def __sub__(self, other: Room) -> Room:
        return self + Room(*(-each for each in dataclasses.astuple(other)))

    def beyond(self, limit: Room) -> Iterator[tuple[str, float, float]]:
        """Yields name, value and limit of each field that exceeds its limit."""
        for field in dataclasses.fields(self):
            value, most = getattr(self, field.name), getattr(limit, field.name)
            if value > most:
                yield field.name, value, most

    def fits(self, limit: Room) -> bool:
        return not any(self.beyond(limit))

    def share_of(self, whole: Room) -> float:
        """The largest share that it takes of any field of `whole`."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(whole), strict=True)
        return max(part / most if most else math.inf for part, most in pairs if part)


def total(specs: Iterable[SandboxSpec]) -> Room:
    return sum((Room.of(spec) for spec in specs), Room())


def memory_here_mb() -> int:
    """The memory for sandboxes on this machine, within the limit of this process's cgroup."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(FOR_SANDBOXES * min(memory, cgroups.memory_limit())) >> 20


def cpus_here() -> int:
    return len(os.sched_getaffinity(0))


@dataclasses.dataclass(frozen=True)
class Usage:
    """What an owner's sandboxes have used since the pool was opened. sandbox_seconds: the time that
    they were up. cpu_seconds: as their last reports said, which are about a second apart."""

    sandbox_seconds: float = 0.0
    cpu_seconds: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.sandbox_seconds + other.sandbox_seconds, self.cpu_seconds + other.cpu_seconds
        )


class UsageLedger:
    """The usage of machines that have ended, by owner."""

    def __init__(self):
        self._ended: collections.defaultdict[str, Usage] = collections.defaultdict(Usage)

    def note(self, owner: str, usage: Usage) -> None:
        self._ended[owner] += usage

    def with_running(self, running: Iterable[tuple[str, Usage]]) -> dict[str, Usage]:
        """Returns the totals that include the machines which are still running."""
        totals = self._ended.copy()
        for owner, usage in running:
            totals[owner] += usage
        return dict(totals)

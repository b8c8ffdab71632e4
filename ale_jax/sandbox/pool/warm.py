"""Sandboxes that are started before anybody asks for them."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable

from ale_jax.sandbox.pool.api import Cause, StartRequest, State
from ale_jax.sandbox.pool.lives import Lives
from ale_jax.sandbox.pool.machines import Machines
from ale_jax.sandbox.pool.member import Member
from ale_jax.sandbox.spec import SandboxSpec

FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 60.0


@dataclasses.dataclass
class Shelf:
    """The warm members of one spec. failures: starts in a row that failed; not_before: by the
    pool's clock, when the next is tried."""

    spec: SandboxSpec
    count: int
    members: list[Member] = dataclasses.field(default_factory=list)
    failures: int = 0
    not_before: float = 0.0


class WarmPool:
    """Keeps `count` sandboxes of each spec ready, as far as slots are free.

    at_once: how many it starts at the same time, so that others' starts find a permit.
    """

    def __init__(self, lives: Lives, machines: Machines, at_once: int, clock: Callable[[], float]):
        self._lives, self._machines = lives, machines
        self._at_once, self._clock = at_once, clock
        self._shelves: dict[str, Shelf] = {}

    @property
    def ready(self) -> int:
        return sum(m.life.state is State.READY for m in self._members())

    def keep(self, spec: SandboxSpec, count: int) -> None:
        """From now on `count` of them. Those that are too many are ended."""
        shelf = self._shelves.setdefault(spec.key(), Shelf(spec, count))
        shelf.count = count
        self._tidy(shelf)
        for member in shelf.members[count:]:
            self._lives.end(member, Cause.REDUNDANT, "fewer are to be kept warm")
        self.refill()

    def take(self, spec: SandboxSpec) -> Member | None:
        """A warm one, if need be one that is still on its way; it is the caller's to adopt."""
        shelf = self._shelves.get(spec.key())
        if shelf is None:
            return None
        self._tidy(shelf)
        ready = [member for member in shelf.members if member.life.state is State.READY]
        return next(iter(ready or shelf.members), None)

    def evict(self) -> Member | None:
        """One that is ready and may make room for another spec's."""
        ready = [m for m in self._members() if m.life.state is State.READY]
        return next(iter(ready), None)

    def refill(self) -> None:
        """Starts what is missing, and can be started now. To be called from time to time."""
        on_their_way = sum(not m.life.is_up for m in self._members())
        for shelf in self._shelves.values():
            self._tidy(shelf)
            for _ in range(shelf.count - len(shelf.members)):
                if on_their_way >= self._at_once or self._clock() < shelf.not_before:
                    break
                if not self._machines.reserve():
                    return
                request = StartRequest(shelf.spec)
                shelf.members.append(self._lives.begin(new_id(), request, is_warm=True))
                on_their_way += 1

    def _members(self) -> list[Member]:
        for shelf in self._shelves.values():
            self._tidy(shelf)
        return [member for shelf in self._shelves.values() for member in shelf.members]

    def _tidy(self, shelf: Shelf) -> None:
        """Lets go of those that are somebody's now, or have ended."""
        warm = [member for member in shelf.members if member.is_warm]
        shelf.members = [m for m in warm if m.ending is None and not m.life.is_over]
        if any(member.life.cause is Cause.START_FAILED for member in warm):
            shelf.failures += 1
            pause = min(FIRST_PAUSE_S * 2 ** (shelf.failures - 1), LAST_PAUSE_S)
            shelf.not_before = self._clock() + pause
        elif any(member.life.is_up for member in warm):
            shelf.failures = 0


def new_id() -> str:
    return uuid.uuid4().hex[:16]

"""Who gets which sandbox: one that runs already, a warm one, or a new one in a free slot."""

from __future__ import annotations

import dataclasses

from ale_jax.sandbox.pool.api import Cause, PoolFull, SandboxGone, StartRequest
from ale_jax.sandbox.pool.lives import Lives
from ale_jax.sandbox.pool.machines import Machines
from ale_jax.sandbox.pool.member import Member
from ale_jax.sandbox.pool.warm import WarmPool, new_id


class Admission:
    """Finds or begins the members that requests ask for. It decides at once, without waiting."""

    def __init__(self, lives: Lives, machines: Machines, warm: WarmPool, node: str):
        self._lives, self._machines, self._warm, self._node = lives, machines, warm, node

    def admit(self, request: StartRequest, generation: int = 0) -> Member:
        """The member for `request`, on its way if it is new.

        Errors: PoolFull, SandboxGone for an id that has ended, ValueError for one that is another's
        and for a snapshot that is not there.
        """
        if member := self._find(request):
            return member
        id = request.id or new_id()
        if warm := self._warm.take(request.spec):
            self._lives.adopt(warm, id, request, generation)
            return warm
        if self._machines.reserve():
            return self._lives.begin(id, request, generation)
        if warm := self._warm.evict():
            ending = self._lives.end(warm, Cause.REDUNDANT, "its slot was needed", keep_slot=True)
            return self._lives.begin(id, request, generation, after=ending)
        raise PoolFull(f"all {self._machines.slots} slots of node {self._node} are taken")

    def admit_many(
        self, request: StartRequest, count: int, spare: int, members: list[Member]
    ) -> None:
        """Appends `count` to `members`, or fails in the middle, and then up to `spare` more."""
        for number in range(count + spare):
            each = dataclasses.replace(request, id=request.id and f"{request.id}-{number}")
            try:
                members.append(self.admit(each))
            except (PoolFull, SandboxGone):
                if len(members) + (count + spare - number - 1) < count:
                    raise

    def _find(self, request: StartRequest) -> Member | None:
        """The member that `request` has started before, if it did."""
        member = self._lives.members.get(request.id)
        if member is None or member.life.cause is Cause.START_FAILED:
            return None
        same = (member.request.spec, member.request.snapshot) == (request.spec, request.snapshot)
        if not same or member.is_warm:
            raise ValueError(f"sandbox id {request.id!r:.80} is another's: choose another id")
        if member.life.cause is not None:
            raise member.gone()
        return member

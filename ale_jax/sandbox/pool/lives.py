"""All sandboxes of a node: how they are born, lost, re-created and ended."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable

from ale_jax.sandbox.api import SandboxError, SandboxStartError
from ale_jax.sandbox.pool.api import Cause, Record, StartRequest, State
from ale_jax.sandbox.pool.machines import Machines
from ale_jax.sandbox.pool.member import Member
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.sandbox.pool.pulse import Pulse
from ale_jax.sandbox.pool.snapshots import SnapshotStore

MAX_REMEMBERED = 10_000
FIRST_PAUSE_S, LAST_PAUSE_S = 0.5, 8.0


class Lives:
    """The members of a pool by id. Every one that is begun ends exactly once, by `end`, by a start
    that failed, or by a loss; its slot and its snapshot are free again then.

    What changes a member's state does not wait for anything, so nobody sees it half done.
    """

    def __init__(
        self,
        machines: Machines,
        store: SnapshotStore,
        options: PoolOptions,
        record: Record,
        clock: Callable[[], float],
    ):
        self.members: dict[str, Member] = {}
        self.restarts = 0
        self._machines, self._store, self._options = machines, store, options
        self._record, self._clock = record, clock
        self._ended: collections.deque[tuple[float, Member]] = collections.deque()

    def begin(
        self,
        id: str,
        request: StartRequest,
        generation: int = 0,
        is_warm: bool = False,
        after: asyncio.Task | None = None,
    ) -> Member:
        """A new member, which is on its way. A slot must have been reserved for it.

        after: the end of what was in its slot. ValueError for a snapshot that is not there.
        """
        self._assert_free(id)
        if request.snapshot:
            try:
                self._store.pin(request.snapshot)
            except ValueError:
                self._machines.give_back(after)
                raise
        member = self.members[id] = Member(id, request, self._clock, generation)
        member.is_warm = is_warm
        self._bear(member, after)
        return member

    def adopt(self, member: Member, id: str, request: StartRequest, generation: int = 0) -> None:
        """A warm member, up or on its way, becomes what `request` asks for, under another id.

        ValueError for a snapshot that is not there; the member stays warm then.
        """
        assert member.is_warm, member.id
        self._assert_free(id)
        if request.snapshot:
            self._store.pin(request.snapshot)
        del self.members[member.id]
        self.members[id] = member
        member.id, member.request, member.generation = id, request, generation
        member.is_warm = False
        if member.life.state is State.READY:
            member.expect()
            if request.snapshot:
                self._bear(member, None)
            else:
                self._arrive(member, "it was warm")

    def end(
        self, member: Member, cause: Cause, detail: str = "", keep_slot: bool = False
    ) -> asyncio.Task | None:
        """Ends it, unless it has ended. Returns the task that is done when nothing of it is left.

        keep_slot: for another, which starts after that; only for one that is up.
        """
        assert member.life.is_up or not keep_slot, member.life.state
        if not member.life.is_over and member.ending is None:
            member.to(State.STOPPING, detail, cause)
            member.birth.cancel()
            member.never_arrives(member.gone())
            finish = self._finish(member, keep_slot)
            member.ending = asyncio.get_running_loop().create_task(finish)
            self._note("sandbox_ended", detail or str(cause), member, cause=str(cause))
        return member.ending

    def lose(self, member: Member, detail: str) -> None:
        """It died. A new generation is on its way then, if that is wanted."""
        if not member.life.is_up:
            return
        self._note("sandbox_lost", detail, member)
        member.losses += 1
        member.to(State.FAILED, detail, Cause.LOST)
        again = member.request.recreate and member.losses <= self._options.max_losses
        old = self._end_machine(member, keep_slot=again)
        if not again:
            self._retire(member)
            return
        self.restarts += 1
        member.generation += 1
        member.to(State.PENDING, f"generation {member.generation}")
        member.expect()
        self._bear(member, old)

    def forget(self) -> None:
        """Those that ended long ago."""
        oldest = self._clock() - self._options.remember_seconds
        while self._ended and (self._ended[0][0] < oldest or len(self._ended) > MAX_REMEMBERED):
            _, member = self._ended.popleft()
            if self.members.get(member.id) is member:  # else its id is in use again
                del self.members[member.id]

    def _bear(self, member: Member, after: asyncio.Task | None) -> None:
        member.birth_began, member.after = False, after
        member.birth = asyncio.get_running_loop().create_task(self._birth(member))

    async def _birth(self, member: Member) -> None:
        """Waits for a permit, the runtime and the snapshot's files; `end` cancels it."""
        member.birth_began = True
        try:
            if member.sandbox is None:
                await self._launch(member)
            if member.request.snapshot and not member.is_warm:
                await self._fill(member)
        except Exception as error:  # whatever it is, those who wait are told
            self._fail(member, error)
        else:
            self._arrive(member)

    async def _launch(self, member: Member) -> None:
        pause = 0.0
        if member.losses > 1:
            pause = min(FIRST_PAUSE_S * 2 ** (member.losses - 2), LAST_PAUSE_S)
        labels = {**member.request.labels, "node": self._options.name, "sandbox": member.id}

        def record(kind: str, detail: str, **fields: str | int | None) -> None:
            self._note(kind, detail, member, **fields)  # a warm one has another id by then

        member.sandbox = await self._machines.launch(
            member.request.spec,
            labels,
            record,
            lambda: member.to(State.STARTING),
            member.after,
            pause,
        )
        member.pulse = Pulse(self._options.ask_ticks, self._options.tick_seconds)

    async def _fill(self, member: Member) -> None:
        if member.life.state is State.READY:
            member.to(State.STARTING, "restores a snapshot")
        try:
            content = await self._store.get(member.request.snapshot)
            async with asyncio.timeout(self._options.launch_seconds):
                await member.sandbox.restore(content)
        except (SandboxError, TimeoutError) as error:
            raise SandboxStartError(f"cannot restore the snapshot: {error or 'late'}") from error

    def _arrive(self, member: Member, detail: str = "") -> None:
        member.arrive()
        kind = "sandbox_recreated" if member.generation else "sandbox_started"
        self._note("sandbox_warm" if member.is_warm else kind, detail, member)

    def _fail(self, member: Member, error: Exception) -> None:
        """Its start failed; one that has run before is tried again."""
        detail = str(error) or repr(error)
        self._note("sandbox_start_failed", detail, member)
        member.to(State.FAILED, detail, Cause.START_FAILED)
        again = 0 < member.losses < self._options.max_losses
        old = None
        if member.sandbox is not None:
            old = self._end_machine(member, keep_slot=again)
        elif again:  # its slot was given back, and nothing else has run since then
            again = self._machines.reserve()
        if again:
            member.losses += 1
            member.to(State.PENDING, "again")
            self._bear(member, old)
        else:
            member.never_arrives(error)
            self._retire(member)

    async def _finish(self, member: Member, keep_slot: bool) -> None:
        await asyncio.wait([member.birth])
        if member.sandbox is not None:
            await self._end_machine(member, keep_slot)
        elif not member.birth_began:  # a task that is cancelled before its first step takes none
            self._machines.give_back(member.after)
        member.to(State.STOPPED)
        self._retire(member)

    def _end_machine(self, member: Member, keep_slot: bool) -> asyncio.Task:
        sandbox, member.sandbox = member.sandbox, None
        if member.pulse is not None:
            member.pulse.stop()
            member.pulse = None
        return self._machines.end(sandbox, member.id, keep_slot)

    def _assert_free(self, id: str) -> None:
        assert id not in self.members or self.members[id].life.is_over, id

    def _retire(self, member: Member) -> None:
        if member.request.snapshot:
            self._store.unpin(member.request.snapshot)
        self._ended.append((self._clock(), member))

    def _note(self, kind: str, detail: str, member: Member, **fields: str | int | None) -> None:
        self._record(kind, detail, sandbox=member.id, generation=member.generation, **fields)

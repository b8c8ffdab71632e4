"""What one tenant may do with the pool."""

from __future__ import annotations

import dataclasses
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.pool.accounting import OWNER
from ale_jax.sandbox.pool.api import (
    PoolEvent,
    SandboxGone,
    SandboxPool,
    SnapshotInfo,
    StartRequest,
    Status,
)
from ale_jax.sandbox.service import uploads
from ale_jax.sandbox.service.access import Tenant
from ale_jax.sandbox.service.protocol import EventsAnswer, Refusal, not_found, taken
from ale_jax.sandbox.service.tenants import MB, TenantAccount, Ticket

MAX_OWNERS = 100_000
# How much room a download is tried with. A failure costs at most half of the next attempt.
DOWNLOAD_BYTES = (8 * MB, 32 * MB, 128 * MB, uploads.MAX_BYTES)
OWNER_S = 5.0  # much less than any pool remembers a sandbox that has ended


class Owners:
    """The owner of each sandbox, according to its label. They are cached so that a call need not
    ask the pool, and so that an owner is still told that a sandbox is gone when the pool has
    forgotten it.

    The cache is believed for OWNER_S only, and only for living sandboxes: an id that has failed to
    start, or that the pool has forgotten, may be taken by another tenant through another front end.
    """

    def __init__(self, pool: SandboxPool, clock: Callable[[], float] = time.monotonic):
        self._pool, self._clock = pool, clock
        self._names: OrderedDict[str, str | None] = OrderedDict()
        self._sure_until: dict[str, float] = {}

    async def of(self, id: str) -> str | None:
        """Returns the tenant's name; None if the sandbox has no owner. Errors: SandboxGone."""
        if self._clock() > self._sure_until.get(id, 0.0):
            try:
                self.note(await self._pool.status(id))
            except SandboxGone:
                if id not in self._names:
                    raise
        return self._names[id]

    def note(self, status: Status) -> None:
        lives = status.cause is None
        self._sure_until[status.id] = self._clock() + OWNER_S if lives else 0.0
        self._names[status.id] = status.labels.get(OWNER)
        self._names.move_to_end(status.id)
        while len(self._names) > MAX_OWNERS:
            id, _ = self._names.popitem(last=False)
            del self._sure_until[id]


@dataclasses.dataclass(frozen=True)
class Caller:
    """The pool as one tenant may use it, during one call. A call on another tenant's sandbox is a
    Refusal (404), as if it had never existed, and what no sandbox of the tenant may have is a
    Refusal, too; other errors are the pool's."""

    pool: SandboxPool
    owners: Owners
    tenant: Tenant
    ticket: Ticket

    @property
    def account(self) -> TenantAccount:
        return self.ticket.account

    async def start(self, request: StartRequest) -> Status:
        if request.id and await self._is_others(request.id):
            raise taken(request.id)
        claimed = self._claimed(request)
        return self._noted(await self.pool.start(claimed, self.account.limits))

    async def start_many(self, request: StartRequest, count: int, spare: int) -> list[Status]:
        claimed = self._claimed(request)
        statuses = await self.pool.start_many(claimed, count, spare, self.account.limits)
        return [self._noted(status) for status in statuses]

    async def fork(self, id: str, count: int) -> list[Status]:
        account = self.account
        account.check((await self.status(id)).spec)
        statuses = await self.pool.fork(id, count, account.quota.snapshot_bytes, account.limits)
        for status in statuses:
            self.owners.note(status)
        return list(statuses)

    async def stop(self, id: str) -> None:
        await self.own(id)
        await self.pool.stop(id)

    async def has(self, id: str) -> bool:
        """Whether a sandbox with this id, of whomever, lives."""
        try:
            return (await self.pool.status(id)).cause is None
        except SandboxGone:
            return False

    async def status(self, id: str) -> Status:
        await self.own(id)
        return await self.pool.status(id)

    async def statuses(self) -> Sequence[Status]:
        return [each for each in await self.pool.statuses() if self._is_mine(each)]

    async def events(self, after: int | None, limit: int) -> EventsAnswer:
        """Returns the first `limit` events after that number; for None, the last `limit`."""
        found = await self.pool.events_after(after or 0)
        mine = [event for event in found.events if await self._may_know(event)]
        if after is None:
            return EventsAnswer(tuple(mine[-limit:]), found.last, False)
        is_all = len(mine) <= limit
        up_to = found.last if is_all else mine[limit - 1].number
        return EventsAnswer(tuple(mine[:limit]), up_to, after < found.forgotten)

    async def call(self, id: str, method: str, **arguments: Any) -> Any:
        await self.own(id)
        size = arguments.get("max_bytes")
        if not size:
            return await self.pool.call(id, method, **arguments)
        kept = self.ticket.held_bytes
        await self.ticket.hold(size)
        try:
            content = await self.pool.call(id, method, **arguments)
            kept += len(content)
        finally:
            self.ticket.keep(kept)
        return content

    async def download(self, id: str, path: str) -> bytes:
        """Returns an archive of a directory. Nobody knows its size before, so it is tried with more
        and more room, lest it wait until the buffer has room for the largest."""
        most = int(min(uploads.MAX_BYTES, self.account.quota.buffer_mb * MB))
        for size in (*(each for each in DOWNLOAD_BYTES if each < most), most):
            try:
                return await self.call(id, "pack", path=path, max_bytes=size)
            except SandboxError as error:
                if f"longer than {size} bytes" not in str(error):
                    raise
                longer = error
        if most < uploads.MAX_BYTES:
            message = f"{longer}, the buffer_mb of this token: transfer it in parts"
            raise SandboxError(message) from longer
        raise longer

    async def stream(
        self, id: str, argv: Sequence[str] | str, **arguments: Any
    ) -> AsyncGenerator[tuple[str, bytes | int], None]:
        await self.own(id)
        return self.pool.stream(id, argv, **arguments)

    async def snapshot(self, id: str) -> SnapshotInfo:
        await self.own(id)
        return await self.pool.snapshot(id, self.account.quota.snapshot_bytes)

    async def renew(self, id: str, seconds: float) -> Status:
        """seconds: to live from now; 0: as long as the tenant may."""
        await self.own(id)
        return await self.pool.renew(id, self.account.time_limit("deadline_seconds", seconds))

    async def restore(self, id: str, snapshot: str) -> None:
        await self.own(id)
        await self.pool.restore(id, snapshot)

    async def own(self, id: str) -> None:
        try:
            owner = await self.owners.of(id)
        except SandboxGone as error:
            raise not_found(id) from error
        if not self.tenant.admin and owner != self.tenant.name:
            raise not_found(id)

    def only_admin(self, what: str) -> None:
        if not self.tenant.admin:
            message = f"{what} needs an administrator's token"
            raise Refusal(403, "forbidden", message, "ask the operator of the service")

    async def _may_know(self, event: PoolEvent) -> bool:
        if self.tenant.admin:
            return True
        try:
            return bool(event.sandbox) and await self.owners.of(event.sandbox) == self.tenant.name
        except SandboxGone:  # it has no owner known here, or ended long ago
            return False

    def _is_mine(self, status: Status) -> bool:
        return self.tenant.admin or status.labels.get(OWNER) == self.tenant.name

    def _claimed(self, request: StartRequest) -> StartRequest:
        if request.labels.get(OWNER, self.tenant.name) != self.tenant.name:
            raise ValueError(f"label {OWNER!r} is reserved for the service: leave it out")
        self.account.check(request.spec)
        limit = self.account.time_limit
        return dataclasses.replace(
            request,
            labels={**request.labels, OWNER: self.tenant.name},
            idle_seconds=limit("idle_seconds", request.idle_seconds),
            deadline_seconds=limit("deadline_seconds", request.deadline_seconds),
        )

    def _noted(self, status: Status) -> Status:
        # A start with an id that exists returns that sandbox, which may belong to another tenant.
        if status.labels.get(OWNER) != self.tenant.name:
            raise taken(status.id)
        self.owners.note(status)
        return status

    async def _is_others(self, id: str) -> bool:
        try:
            return await self.owners.of(id) != self.tenant.name
        except SandboxGone:  # there is no such sandbox
            return False

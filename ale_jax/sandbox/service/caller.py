"""What one tenant may do with the pool."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.pool.accounting import BEHIND_OWNER, OWNER
from ale_jax.sandbox.pool.api import (
    SandboxGone,
    SandboxPool,
    SnapshotInfo,
    StartRequest,
    Status,
)
from ale_jax.sandbox.service import uploads
from ale_jax.sandbox.service.access import Tenant
from ale_jax.sandbox.service.protocol import EventsAnswer, Refusal, not_found
from ale_jax.sandbox.service.tenants import MB, TenantAccount, Ticket

# How much room a download is tried with. A failure costs at most half of the next attempt.
DOWNLOAD_BYTES = (8 * MB, 32 * MB, 128 * MB, uploads.MAX_BYTES)


@dataclasses.dataclass(frozen=True)
class Caller:
    """The pool as one tenant may use it, during one call.

    Each tenant has ids of its own: the pool knows a sandbox as NAME~ID, and the tenant as ID. So a
    call on another tenant's sandbox is a Refusal (404), as if it had never existed, and no id is
    taken by another tenant's. An administrator calls others' sandboxes NAME~ID, and those that
    nobody has yet ~ID. What no sandbox of the tenant may have is a Refusal, too; other errors are
    the pool's.
    """

    pool: SandboxPool
    tenant: Tenant
    ticket: Ticket

    @property
    def account(self) -> TenantAccount:
        return self.ticket.account

    @property
    def prefix(self) -> str:
        return f"{self.tenant.name}{BEHIND_OWNER}"

    def pools_id(self, id: str) -> str:
        """Returns what the pool calls a sandbox."""
        if self.tenant.admin and BEHIND_OWNER in id:
            return id.removeprefix(BEHIND_OWNER)
        return self.prefix + id

    def own_id(self, id: str) -> str:
        """Returns what the tenant calls a sandbox of the pool."""
        return id.removeprefix(self.prefix) if BEHIND_OWNER in id else BEHIND_OWNER + id

    @contextlib.contextmanager
    def naming(self) -> Iterator[None]:
        """In its block, an error about a missing sandbox has the tenant's name for it."""
        try:
            yield
        except SandboxGone as error:
            id = self.own_id(error.id)
            raise SandboxGone(id, error.cause) if error.cause else not_found(id) from error

    async def start(self, request: StartRequest) -> Status:
        claimed = self._claimed(request)
        with self.naming():
            return self._shown(await self.pool.start(claimed, self.account.limits))

    async def start_many(self, request: StartRequest, count: int, spare: int) -> list[Status]:
        claimed = self._claimed(request)
        with self.naming():
            found = await self.pool.start_many(claimed, count, spare, self.account.limits)
        return [self._shown(status) for status in found]

    async def fork(self, id: str, count: int) -> list[Status]:
        account = self.account
        spec = (await self.status(id)).spec
        account.check(spec)
        self.tenant.check_datasets(spec)
        most, own = account.quota.snapshot_bytes, self.pools_id(id)
        with self.naming():
            found = await self.pool.fork(own, count, most, account.limits)
        return [self._shown(status) for status in found]

    async def stop(self, id: str) -> None:
        with self.naming():
            await self.pool.stop(self.pools_id(id))

    async def has(self, id: str) -> bool:
        """Whether a sandbox of this caller with this id lives."""
        try:
            return (await self.pool.status(self.pools_id(id))).cause is None
        except SandboxGone:
            return False

    async def status(self, id: str) -> Status:
        with self.naming():
            return self._shown(await self.pool.status(self.pools_id(id)))

    async def statuses(self) -> Sequence[Status]:
        return [self._shown(each) for each in await self.pool.statuses() if self._sees(each.id)]

    async def events(self, after: int | None, limit: int) -> EventsAnswer:
        """Returns the first `limit` events after that number; for None, the last `limit`."""
        found = await self.pool.events_after(after or 0)
        mine = [
            dataclasses.replace(event, sandbox=event.sandbox and self.own_id(event.sandbox))
            for event in found.events
            if self._sees(event.sandbox)
        ]
        if after is None:
            return EventsAnswer(tuple(mine[-limit:]), found.last, False)
        is_all = len(mine) <= limit
        up_to = found.last if is_all else mine[limit - 1].number
        return EventsAnswer(tuple(mine[:limit]), up_to, after < found.forgotten)

    async def call(self, id: str, method: str, **arguments: Any) -> Any:
        own, size = self.pools_id(id), arguments.get("max_bytes")
        with self.naming():
            if not size:
                return await self.pool.call(own, method, **arguments)
            kept = self.ticket.held_bytes
            await self.ticket.hold(size)
            try:
                content = await self.pool.call(own, method, **arguments)
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
        await self.check(id)
        return self._stream(self.pool.stream(self.pools_id(id), argv, **arguments))

    async def _stream(
        self, pieces: AsyncGenerator[tuple[str, bytes | int], None]
    ) -> AsyncGenerator[tuple[str, bytes | int], None]:
        async with contextlib.aclosing(pieces):
            with self.naming():
                async for piece in pieces:
                    yield piece

    async def snapshot(self, id: str) -> SnapshotInfo:
        with self.naming():
            return await self.pool.snapshot(self.pools_id(id), self.account.quota.snapshot_bytes)

    async def renew(self, id: str, seconds: float) -> Status:
        """seconds: to live from now; 0: as long as the tenant may."""
        limit = self.account.time_limit("deadline_seconds", seconds)
        with self.naming():
            return self._shown(await self.pool.renew(self.pools_id(id), limit))

    async def restore(self, id: str, snapshot: str) -> None:
        with self.naming():
            await self.pool.restore(self.pools_id(id), snapshot)

    async def check(self, id: str) -> None:
        """Errors: Refusal (404) if the tenant has no sandbox with that id."""
        await self.status(id)

    def only_admin(self, what: str) -> None:
        if not self.tenant.admin:
            message = f"{what} needs an administrator's token"
            raise Refusal(403, "forbidden", message, "ask the operator of the service")

    def _sees(self, pools_id: str) -> bool:
        return self.tenant.admin or pools_id.startswith(self.prefix)

    def _shown(self, status: Status) -> Status:
        return dataclasses.replace(status, id=self.own_id(status.id))

    def _claimed(self, request: StartRequest) -> StartRequest:
        if request.labels.get(OWNER, self.tenant.name) != self.tenant.name:
            raise ValueError(f"label {OWNER!r} is reserved for the service: leave it out")
        self.account.check(request.spec)
        self.tenant.check_datasets(request.spec)
        limit = self.account.time_limit
        return dataclasses.replace(
            request,
            id=request.id and self.prefix + request.id,
            labels={**request.labels, OWNER: self.tenant.name},
            idle_seconds=limit("idle_seconds", request.idle_seconds),
            deadline_seconds=limit("deadline_seconds", request.deadline_seconds),
        )

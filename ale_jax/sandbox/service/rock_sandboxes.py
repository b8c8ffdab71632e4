"""Sandboxes by the ids that ROCK's clients know, from the start to the deletion.

A start request does not wait: the client polls the status of its sandbox. A stopped sandbox can be
restarted with its files, which a snapshot keeps. For the pool, the restarted sandbox is a new one
with its own id, because a pool never reuses an id.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import time
import uuid
from typing import Any

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.pool.api import SandboxGone, StartRequest, State, Status
from ale_jax.sandbox.service import rock_spec
from ale_jax.sandbox.service.caller import Caller
from ale_jax.sandbox.service.protocol import not_found

MAX_KNOWN = 10_000
NOT_STOPPED = "it was not stopped by a request"


@dataclasses.dataclass
class RockSandbox:
    """request: the latest one to start it. pools_id: what the pool calls what that started. start:
    returns the status, or raises why there is none. keep_seconds: how long its files are kept after
    a stop. files: id of their snapshot, which a restart may use until `kept_until` (monotonic);
    empty: `no_files` says why."""

    request: StartRequest
    pools_id: str
    start: asyncio.Task[Status]
    keep_seconds: float
    files: str = ""
    no_files: str = NOT_STOPPED
    kept_until: float = math.inf
    is_deleted: bool = False
    # Held by stop, restart and delete, which must not overlap.
    turn: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)

    def start_error(self) -> BaseException | None:
        if self.start.cancelled():
            return asyncio.CancelledError()
        return self.start.exception() if self.start.done() else None

    @property
    def is_up(self) -> bool:
        """Whether its start succeeded; what happened to it since, the pool knows."""
        return self.start.done() and self.start_error() is None

    @property
    def is_over(self) -> bool:
        return self.is_deleted or self.start_error() is not None

    def forget_files(self) -> None:
        """Forgets the snapshot after a successful restart: the files change from then on."""
        if self.is_up:
            self.files, self.no_files = "", NOT_STOPPED


class RockSandboxes:
    """The sandboxes that were started here, at most MAX_KNOWN. For one event loop."""

    def __init__(self):
        # By what the pool would call a sandbox of that id; in the order of creation.
        self._known: dict[str, RockSandbox] = {}

    def begin(self, by: Caller, request: StartRequest, keep_seconds: float) -> None:
        """Starts a sandbox in the background. Errors: ValueError: id in use."""
        key = by.pools_id(request.id)
        known = self._known.get(key)
        if known and not known.is_over:
            raise ValueError(f"sandbox_id {request.id!r:.140} is in use: delete it first")
        own = dataclasses.replace(request, id=_new_id()) if known else request
        start = _started(by, own)
        self._known[key] = RockSandbox(own, by.pools_id(own.id), start, keep_seconds)
        if len(self._known) > MAX_KNOWN:
            over = (id for id, each in self._known.items() if each.is_over)
            del self._known[next(over, next(iter(self._known)))]

    def present_id(self, by: Caller, id: str) -> str:
        """Returns the id of what was started last. Errors: Refusal (404) for one that was
        deleted."""
        sandbox = self._find(by, id)
        return by.own_id(sandbox.pools_id) if sandbox else id

    def idle_seconds(self, by: Caller, id: str) -> float:
        """How long it may live without use, according to ROCK's client and to the token; 0: no
        limit."""
        sandbox = self._find(by, id)
        asked = sandbox.request.idle_seconds if sandbox else 0.0
        limit = min(asked or math.inf, by.account.quota.idle_seconds)
        return limit if math.isfinite(limit) else 0.0

    async def wait_for_start(self, by: Caller, id: str, seconds: float) -> None:
        """Returns when the start has succeeded or failed, or after `seconds`."""
        if sandbox := self._find(by, id):
            await asyncio.wait([sandbox.start], timeout=seconds)

    async def describe(self, by: Caller, id: str) -> dict[str, Any]:
        sandbox = self._find(by, id)
        if sandbox and not sandbox.is_up:
            return rock_spec.of_starting(id, sandbox.request, sandbox.start_error())
        return rock_spec.of_running(id, await by.status(self.present_id(by, id)))

    async def stop(self, by: Caller, id: str) -> str:
        """Stops a sandbox and keeps its files, if it runs. Stops it even if they cannot be kept.
        Returns the pool's id of what has ended."""
        sandbox = self._find(by, id)
        if sandbox is None:
            await by.stop(id)
            return by.pools_id(id)
        async with sandbox.turn:
            if await self._runs(by, sandbox):
                await self._keep_files(by, sandbox)
            return await self._end(by, sandbox)

    async def delete(self, by: Caller, id: str) -> str:
        """Ends a sandbox; nothing about it can be requested afterwards. Returns the pool's id of
        what has ended."""
        sandbox = self._own(by, id)
        if sandbox is None:
            await by.stop(id)
            return by.pools_id(id)
        async with sandbox.turn:
            ended = await self._end(by, sandbox)
            sandbox.is_deleted = True
        return ended

    async def restart(self, by: Caller, id: str) -> None:
        """Starts it again in the background, with the files `stop` kept. Errors: ValueError."""
        sandbox = self._find(by, id)
        if sandbox is None:
            await by.check(id)
            raise ValueError(f"sandbox {id!r:.140} was not started by ROCK's client")
        async with sandbox.turn:
            if sandbox.is_deleted:
                raise not_found(id)
            if not sandbox.start.done() or await self._runs(by, sandbox):
                raise ValueError(f"sandbox {id!r:.140} runs: stop it first")
            if not sandbox.files:
                raise ValueError(f"no files of {id!r:.140} were kept: {sandbox.no_files}")
            if time.monotonic() > sandbox.kept_until:
                raise ValueError(
                    f"the files of {id!r:.140} were kept for only {sandbox.keep_seconds:g} s"
                )
            again = dataclasses.replace(sandbox.request, id=_new_id(), snapshot=sandbox.files)
            sandbox.request, sandbox.pools_id = again, by.pools_id(again.id)
            sandbox.start = _started(by, again)
            sandbox.start.add_done_callback(lambda _: sandbox.forget_files())

    def _find(self, by: Caller, id: str) -> RockSandbox | None:
        """Errors: Refusal (404) for one that was deleted."""
        sandbox = self._own(by, id)
        if sandbox and sandbox.is_deleted:
            raise not_found(id)
        return sandbox

    def _own(self, by: Caller, id: str) -> RockSandbox | None:
        return self._known.get(by.pools_id(id))

    async def _runs(self, by: Caller, sandbox: RockSandbox) -> bool:
        if not sandbox.is_up:
            return False
        try:
            return (await by.status(by.own_id(sandbox.pools_id))).state is State.RUNNING
        except SandboxGone:  # it ended so long ago that the pool has forgotten it
            return False

    async def _keep_files(self, by: Caller, sandbox: RockSandbox) -> None:
        try:
            sandbox.files, sandbox.no_files = (
                (await by.snapshot(by.own_id(sandbox.pools_id))).id,
                "",
            )
        except (SandboxError, OSError) as error:
            sandbox.no_files = str(error)
        sandbox.kept_until = time.monotonic() + sandbox.keep_seconds

    async def _end(self, by: Caller, sandbox: RockSandbox) -> str:
        if sandbox.is_up:
            with contextlib.suppress(SandboxGone):
                await by.stop(by.own_id(sandbox.pools_id))
        elif not sandbox.start.done():
            sandbox.start.cancel()
            await asyncio.wait([sandbox.start])
        return sandbox.pools_id


def _started(by: Caller, request: StartRequest) -> asyncio.Task[Status]:
    start = asyncio.ensure_future(by.start(request))
    start.add_done_callback(lambda start: start.cancelled() or start.exception())  # reported later
    return start


def _new_id() -> str:
    return uuid.uuid4().hex

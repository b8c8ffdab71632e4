"""A pool without machines: what is started is a record, and calls do what the test says."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import time
from collections.abc import Callable

from ale_jax.sandbox.api import ExecResult
from ale_jax.sandbox.pool.accounting import BEHIND_OWNER, Room, Usage, owner_of, total
from ale_jax.sandbox.pool.api import (
    Cause,
    Change,
    NodeStatus,
    SandboxGone,
    SnapshotInfo,
    State,
    Status,
)
from ale_jax.sandbox.pool.events import EventRing, log_event

DONE = ExecResult("done\n", 0, False, 0, 0.1)


class MemoryPool:
    """answers: by method, a value, an exception, or a function of (id, arguments)."""

    def __init__(self):
        self.answers: dict[str, object] = {"run": DONE, "snapshot": SnapshotInfo("f" * 64, 1, 0.0)}
        self.calls: list[tuple[str, str, dict]] = []
        self.members: dict[str, Status] = {}
        self.start_error: Exception | None = None
        self.node_alive = True
        self.closed_streams = 0
        self.on_start = lambda request: None
        self.capacity = Room(1000, 1 << 20, 1000, math.inf)
        self.ring = EventRing(time.time, log_event)
        self.gate: asyncio.Event | None = None  # if set, calls wait for it

    def _check(self, limits, request, count):
        held = self._held(owner_of(request.labels))
        limits.check(held, self._free(), Room.of(request.spec, count))

    async def start(self, request, limits=None):
        if limits and request.id not in self.members:
            self._check(limits, request, 1)
        if self.start_error:
            raise self.start_error
        self.on_start(request)
        owner = owner_of(request.labels)
        id = request.id or f"{owner}{BEHIND_OWNER if owner else ''}box-{len(self.members)}"
        if id not in self.members:
            now = time.time()
            self.members[id] = Status(
                *(id, "here", "memory", State.RUNNING, None, 0, 0, now, now, request.spec),
                labels=dict(request.labels),
                history=(Change(now, State.RUNNING, ""),),
            )
        if self.members[id].cause:
            raise SandboxGone(id, self.members[id].cause)
        return self.members[id]

    async def start_many(self, request, count, spare=0, limits=None):
        if limits:
            self._check(limits, request, count + spare)
        return [await self.start(request) for _ in range(count)]

    async def stop(self, id):
        if self._known(id).cause is None:
            self.end(id, Cause.STOPPED)

    def end(self, id, cause):
        gone = {"state": State.STOPPED, "cause": cause}
        self.members[id] = dataclasses.replace(self.members[id], **gone)

    async def status(self, id):
        return self._known(id)

    async def statuses(self):
        return list(self.members.values())

    async def call(self, id, method, **arguments):
        if self._known(id).cause:
            raise SandboxGone(id, self.members[id].cause)
        self.calls.append((id, method, arguments))
        if self.gate:
            await self.gate.wait()
        answer = self.answers.get(method)
        if isinstance(answer, Callable):
            answer = answer(id, arguments)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def stream(self, id, argv, **arguments):
        self._known(id)
        try:
            yield "stdout", b"first\n"
            for piece in self.answers.get("stream", ()):
                if piece is None:
                    return
                if isinstance(piece, Exception):
                    raise piece
                yield piece
            await asyncio.Event().wait()
        finally:
            self.closed_streams += 1

    async def fork(self, id, count, max_bytes=None, limits=None):
        like = self._known(id)
        if limits:
            self._check(limits, like, count)
        forks = [dataclasses.replace(like, id=f"{id}-fork-{n}") for n in range(count)]
        self.members |= {each.id: each for each in forks}
        return forks

    async def restore(self, id, snapshot):
        self._known(id)

    async def snapshot(self, id, max_bytes=None):
        self._known(id)
        self.calls.append((id, "snapshot", {"max_bytes": max_bytes}))
        answer = self.answers["snapshot"]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def renew(self, id, seconds):
        known = self._known(id)
        self.calls.append((id, "renew", {"seconds": seconds}))
        return known

    async def held(self, owner):
        return self._held(owner)

    def _held(self, owner):
        living = (each for each in self.members.values() if each.cause is None)
        return total(each.spec for each in living if owner_of(each.labels) == owner)

    def _free(self):
        living = (each.spec for each in self.members.values() if each.cause is None)
        return self.capacity - total(living)

    async def usage(self):
        return {"ann": Usage(10.0, 2.5)}

    async def warm(self, spec, count):
        self.calls.append(("", "warm", {"spec": spec, "count": count}))

    async def nodes(self):
        return [
            NodeStatus(
                "here", self.node_alive, 4, len(self.members), 0, 0, 0.0, 1, 2, 8, 4, 2.0, 1.0
            )
        ]

    async def events_after(self, number):
        return self.ring.after(number)

    @contextlib.asynccontextmanager
    async def opened(self):
        yield self

    def _known(self, id):
        if id not in self.members:
            raise SandboxGone(id, None)
        return self.members[id]

"""Decides which sandbox a request gets (a running one, a warm one, or a new one in a free slot),
keeps the warm pools filled, and supervises all sandboxes of a pool."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from ale_jax.sandbox.pool.accounting import Room, new_id, total
from ale_jax.sandbox.pool.api import Cause, PoolFull, Record, SandboxGone, StartRequest, State
from ale_jax.sandbox.pool.lifecycle import Lifecycle
from ale_jax.sandbox.pool.machines import Machines
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.sandbox.pool.pooled_sandbox import PooledSandbox
from ale_jax.sandbox.spec import SandboxSpec

FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 60.0
SLICES = 10


@dataclasses.dataclass
class WarmPool:
    """The warm sandboxes of one spec.

    failures: consecutive starts that failed. not_before: no further start is attempted before this
    time of the pool's clock.
    """

    spec: SandboxSpec
    count: int
    sandboxes: list[PooledSandbox] = dataclasses.field(default_factory=list)
    failures: int = 0
    not_before: float = 0.0


class WarmPools:
    """Keeps `count` sandboxes of each spec ready, as far as slots are free.

    at_once: maximum number of concurrent warm starts, which leaves launch permits for requests.
    """

    def __init__(
        self, lifecycle: Lifecycle, machines: Machines, at_once: int, clock: Callable[[], float]
    ):
        self._lifecycle, self._machines = lifecycle, machines
        self._at_once, self._clock = at_once, clock
        self._pools: dict[str, WarmPool] = {}

    @property
    def ready(self) -> int:
        return len(self._ready())

    def keep(self, spec: SandboxSpec, count: int) -> None:
        """Sets the number of warm sandboxes of `spec` to `count`, and ends any surplus."""
        pool = self._pools.setdefault(spec.key(), WarmPool(spec, count))
        pool.count = count
        self._tidy(pool)
        for pooled in pool.sandboxes[count:]:
            self._lifecycle.end(pooled, Cause.REDUNDANT, "the warm pool was reduced")
        self.refill()

    def take(self, spec: SandboxSpec) -> PooledSandbox | None:
        """Returns a warm sandbox of `spec`, if possible one that is ready, otherwise one that is
        still starting; None if there is none. The caller must adopt it."""
        pool = self._pools.get(spec.key())
        if pool is None:
            return None
        self._tidy(pool)
        ready = [pooled for pooled in pool.sandboxes if pooled.life.state is State.READY]
        return next(iter(ready or pool.sandboxes), None)

    @property
    def room(self) -> Room:
        """The room of the ready sandboxes, which others may use."""
        return total(each.request.spec for each in self._ready())

    def making_room_for(self, spec: SandboxSpec) -> list[PooledSandbox]:
        """Returns the first ready sandboxes whose end makes enough room; none if all do not."""
        chosen, lacking = [], Room.of(spec)
        for pooled in self._ready():
            chosen.append(pooled)
            lacking -= Room.of(pooled.request.spec)
            if self._machines.has(lacking):
                return chosen
        return []

    def refill(self) -> None:
        """Starts missing warm sandboxes, as far as that is possible now. Called periodically."""
        on_their_way = sum(not m.life.is_up for m in self._sandboxes())
        for pool in self._pools.values():
            self._tidy(pool)
            for _ in range(pool.count - len(pool.sandboxes)):
                if on_their_way >= self._at_once or self._clock() < pool.not_before:
                    break
                if not self._machines.reserve(pool.spec):
                    break
                request = StartRequest(pool.spec)
                pool.sandboxes.append(self._lifecycle.begin(new_id({}), request, is_warm=True))
                on_their_way += 1

    def _ready(self) -> list[PooledSandbox]:
        return [m for m in self._sandboxes() if m.life.state is State.READY]

    def _sandboxes(self) -> list[PooledSandbox]:
        for pool in self._pools.values():
            self._tidy(pool)
        return [pooled for pool in self._pools.values() for pooled in pool.sandboxes]

    def _tidy(self, pool: WarmPool) -> None:
        """Removes sandboxes that were adopted or have ended; a failed start delays the next."""
        warm = [pooled for pooled in pool.sandboxes if pooled.is_warm]
        pool.sandboxes = [m for m in warm if m.ending is None and not m.life.is_over]
        if any(pooled.life.cause is Cause.START_FAILED for pooled in warm):
            pool.failures += 1
            pause = min(FIRST_PAUSE_S * 2 ** (pool.failures - 1), LAST_PAUSE_S)
            pool.not_before = self._clock() + pause
        elif any(pooled.life.is_up for pooled in warm):
            pool.failures = 0


def numbered(request: StartRequest, count: int) -> list[StartRequest]:
    """`count` requests like `request`; if it has an id, theirs are id-0, id-1, ..."""
    ids = (request.id and f"{request.id}-{number}" for number in range(count))
    return [dataclasses.replace(request, id=id) for id in ids]


class Admission:
    """Finds or starts the sandbox for each request. Decides at once, without awaiting anything."""

    def __init__(self, lifecycle: Lifecycle, machines: Machines, warm: WarmPools, node: str):
        self._lifecycle, self._machines, self._warm, self._node = lifecycle, machines, warm, node

    def admit(self, request: StartRequest, generation: int = 0) -> PooledSandbox:
        """Returns the sandbox for `request`; a new one is still starting.

        Errors: PoolFull, SandboxGone for an id that has ended, ValueError for an id that is in use
        by a different request and for a snapshot that does not exist.
        """
        if pooled := self._find(request):
            return pooled
        id = request.id or new_id(request.labels)
        if warm := self._warm.take(request.spec):
            self._lifecycle.adopt(warm, id, request, generation)
            return warm
        if self._machines.reserve(request.spec):
            return self._lifecycle.begin(id, request, generation)
        if evicted := self._warm.making_room_for(request.spec):
            reason = "its slot was needed"
            endings = [
                self._lifecycle.end(each, Cause.REDUNDANT, reason, keep_slot=True)
                for each in evicted
            ]
            self._machines.exchange([each.request.spec for each in evicted], request.spec)
            after = asyncio.gather(*endings)
            return self._lifecycle.begin(id, request, generation, after=after)
        raise PoolFull(f"node {self._node}: {self._machines.shortage(request.spec)}")

    def admit_many(
        self, requests: Sequence[StartRequest], count: int, sandboxes: list[PooledSandbox]
    ) -> None:
        """Appends the sandboxes for `requests` to `sandboxes`; `count` are needed.

        Errors: those of `admit`, if there will be fewer than `count`; the sandboxes that were
        admitted before the error remain in the list.
        """
        for number, request in enumerate(requests, 1):
            try:
                sandboxes.append(self.admit(request))
            except (PoolFull, SandboxGone):
                if len(sandboxes) + len(requests) - number < count:
                    raise

    def is_new(self, id: str) -> bool:
        """Whether no earlier request with this id has started a sandbox."""
        pooled = self._lifecycle.sandboxes.get(id)
        return pooled is None or pooled.life.cause is Cause.START_FAILED

    def _find(self, request: StartRequest) -> PooledSandbox | None:
        """Returns the sandbox that an earlier request with this id has started, if any."""
        if self.is_new(request.id):
            return None
        pooled = self._lifecycle.sandboxes[request.id]
        same = (pooled.request.spec, pooled.request.snapshot) == (request.spec, request.snapshot)
        if not same or pooled.is_warm:
            raise ValueError(
                "its id is that of another request, with another spec or snapshot: choose another"
            )
        if pooled.life.cause is not None:
            raise pooled.gone()
        return pooled


log = logging.getLogger(__name__)


class Supervisor:
    """Runs the pool's periodic tasks. fault: the exception that stopped one of them, if any; the
    pool then refuses further starts."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        machines: Machines,
        warm: WarmPools,
        options: PoolOptions,
        record: Record,
    ):
        self.fault: BaseException | None = None
        self._lifecycle, self._machines, self._warm = lifecycle, machines, warm
        self._options, self._record = options, record
        self._loops: list[asyncio.Task] = []

    def start(self) -> None:
        self._loops = [self._spawn(self._keep_ticking()), self._spawn(self._keep_reaping())]

    def stop(self) -> None:
        for loop in self._loops:
            loop.cancel()

    def tick(self) -> None:
        """Checks every sandbox once, without waiting for any of them."""
        for pooled in self._living():
            self._check(pooled)
        self._tidy()

    def _living(self) -> list[PooledSandbox]:
        return [each for each in self._lifecycle.sandboxes.values() if each.life.is_up]

    def _check(self, pooled: PooledSandbox) -> None:
        if not pooled.life.is_up:  # any more
            return
        if reason := pooled.heartbeat.beat(pooled.sandbox, pooled.busy > 0):
            self._lifecycle.lose(pooled, reason)
        elif pooled.life.state is State.RUNNING and (overdue := pooled.overdue()):
            self._lifecycle.end(pooled, *overdue)

    def _tidy(self) -> None:
        self._lifecycle.forget()
        self._warm.refill()

    async def _keep_ticking(self) -> None:
        """Checks every sandbox every `tick_seconds`: some of them in each of SLICES steps, so that
        calls never wait for the check of all of them."""
        while True:
            living = self._living()
            for step in range(SLICES):
                await asyncio.sleep(self._options.tick_seconds / SLICES)
                for pooled in living[step::SLICES]:
                    self._check(pooled)
            self._tidy()

    async def _keep_reaping(self) -> None:
        """Reaps every `reap_every_seconds`; `Machines.reap` limits the time of each pass."""
        while True:
            await asyncio.sleep(self._options.reap_every_seconds)
            await self._machines.reap()

    def _spawn(self, loop: Coroutine[Any, Any, None]) -> asyncio.Task:
        task = asyncio.get_running_loop().create_task(loop)
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, loop: asyncio.Task) -> None:
        if not loop.cancelled() and (fault := loop.exception()):
            self.fault = fault
            log.error("the pool is out of order", exc_info=fault)
            self._record("pool_fault", repr(fault))

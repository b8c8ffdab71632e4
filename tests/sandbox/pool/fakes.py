"""A runtime in memory whose sandboxes do what a test tells them: fail, hang, freeze, die."""

from __future__ import annotations

import asyncio
import collections
import functools

from ale_jax.sandbox.api import ExecResult, SandboxLost, SandboxStartError, SandboxStats
from ale_jax.sandbox.pool.node_pool import NodePool
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.sandbox.vitals import Vitals

SPEC = SandboxSpec(memory_mb=64)
OTHER = SandboxSpec(memory_mb=96)


class FakeSandbox:
    """files: its working files, as one blob. record: told of what its network is denied.
    cpu_seconds: used so far. pings: how many came. seen: what the host sees of it. Once `gate` is
    set to an event, `run` waits for it."""

    def __init__(self, runtime: FakeRuntime, spec: SandboxSpec, record):
        self.runtime, self.spec, self.record, self.files = runtime, spec, record, b""
        self.cpu_seconds, self.pings, self.seen = 0.0, 0, None
        self.closed = self.refuses_to_close = self.closes_with_error = False
        self.refuses_restore = self.hangs_in_restore = False
        self._gate: asyncio.Event | None = None
        self._boot()

    def _boot(self) -> None:
        self.machine, self._frozen = object(), False
        self._lost = asyncio.get_running_loop().create_future()

    def replace_machine(self) -> None:
        """As a reset of a sandbox on disk does; what the old machine was asked is lost."""
        self.die()
        self._boot()

    def die(self) -> None:
        if not self._lost.done():
            self._lost.set_exception(SandboxLost("it died"))
            self._lost.exception()

    def freeze(self) -> None:
        self._frozen = True

    def hold(self) -> asyncio.Event:
        """From now on, commands end when the event is set."""
        self._gate = asyncio.Event()
        return self._gate

    async def run(self, command: str, timeout: float | None = None) -> ExecResult:
        if self._gate is not None:
            await self._until_lost(self._gate.wait())
        await self._until_lost(asyncio.sleep(0))
        return ExecResult(command, 0, False, 0, 0.0)

    async def write(self, files: bytes) -> None:
        self.files = files

    async def snapshot(self, max_bytes: int | None = None) -> bytes:
        return self.files

    async def restore(self, snapshot: bytes) -> None:
        if self.refuses_restore:
            raise SandboxLost("it died of its snapshot")
        if self.hangs_in_restore:
            await asyncio.sleep(3600)
        self.files = snapshot

    def ping(self) -> asyncio.Future[None]:
        if self._lost.done():
            self._lost.result()
        self.pings += 1
        answer = self._until_lost(asyncio.sleep(3600 if self._frozen else 0))
        return asyncio.ensure_future(answer)

    def vitals(self) -> Vitals | None:
        return self.seen

    async def stats(self) -> SandboxStats:
        await self._until_lost(asyncio.sleep(3600 if self._frozen else 0))
        return SandboxStats(1, 2, 3, self.cpu_seconds, 4)

    async def close(self) -> None:
        self.die()
        if self.closes_with_error:
            raise OSError("no")
        if self.refuses_to_close:
            await asyncio.sleep(3600)
        await asyncio.sleep(0)
        if not self.closed:
            self.closed = True
            self.runtime.existing -= 1

    async def _until_lost(self, work) -> None:
        task, lost = asyncio.ensure_future(work), self._lost
        try:
            await asyncio.wait([task, lost], return_when=asyncio.FIRST_COMPLETED)
            if lost.done():
                lost.result()
        finally:
            task.cancel()


class FakeRuntime:
    """plan: what the next launches do: "ok" (also when it is empty), "fail", "wait" until `go` is
    set, "bug"; "no image" is how the next `prepare` fails. existing, most: sandboxes now, and at
    any time; starting_most: begun at once."""

    name = "fake"

    def __init__(self, *plan: str):
        self.plan = collections.deque(plan)
        self.sandboxes: list[FakeSandbox] = []
        self.go = asyncio.Event()
        self.existing = self.most = self.starting = self.starting_most = self.reaped = 0
        self.labels: list[dict] = []
        self.prepared: list[SandboxSpec] = []

    async def prepare(self, spec: SandboxSpec) -> None:
        if self.plan and self.plan[0] == "no image":
            self.plan.popleft()
            raise SandboxStartError("no such image")
        self.prepared.append(spec)

    async def launch(self, spec: SandboxSpec, labels, record, snapshot=b"") -> FakeSandbox:
        what = self.plan.popleft() if self.plan else "ok"
        self.labels.append(dict(labels))
        self.existing += 1
        self.starting += 1
        self.most = max(self.most, self.existing)
        self.starting_most = max(self.starting_most, self.starting)
        try:
            await (self.go.wait() if what == "wait" else asyncio.sleep(0))
            if what == "fail":
                raise SandboxStartError("no such image")
            if what == "bug":
                raise KeyError("bug")
        except BaseException:
            self.existing -= 1
            raise
        finally:
            self.starting -= 1
        self.sandboxes.append(FakeSandbox(self, spec, record))
        return self.sandboxes[-1]

    def reap(self) -> int:
        self.reaped += 1
        return 0


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Events(list):
    """A `Record` that keeps (kind, fields)."""

    def __call__(self, kind: str, detail: str, **fields) -> None:
        self.append((kind, fields))

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self]


class HandPool(NodePool):
    """A pool whose time passes by `tick` alone."""

    def __init__(self, runtime: FakeRuntime, **options):
        self.clock, self.events = Clock(), Events()
        # So long that only `tick` ticks; bounds that a test waits for are short.
        options = {"tick_seconds": 3600.0, "reap_every_seconds": 3600.0, "slots": 4} | options
        options |= {"close_seconds": options.get("close_seconds", 0.05)}
        super().__init__(runtime, PoolOptions(**options), self.events, self.clock)

    async def tick(self, times: int = 1, seconds: float = 0.0) -> None:
        for _ in range(times):
            self.clock.now += seconds
            self._supervisor.tick()
            await settle()

    @property
    def used(self) -> int:
        return self._machines.slots - self._machines.free


async def settle() -> None:
    """Lets everything happen that waits for nothing but its turn."""
    for _ in range(50):
        await asyncio.sleep(0)


async def until(condition) -> None:
    """Waits for what takes real time: threads and processes."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def in_a_loop(test):
    """A test that is a coroutine."""

    @functools.wraps(test)
    def wrapped(*args, **kwargs):
        asyncio.run(test(*args, **kwargs))

    return wrapped

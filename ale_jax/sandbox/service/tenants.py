"""What each token may use, what it is using now, and how tokens share the service."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

from ale_jax.sandbox.pool.accounting import Room, Usage
from ale_jax.sandbox.pool.api import OwnerLimits, SandboxPool, excess
from ale_jax.sandbox.service.protocol import Refusal, TenantUsage
from ale_jax.sandbox.spec import SandboxSpec

MB = 1 << 20
HOUR_S = 3600.0
# A body up to this size does not count as buffered: the call takes as much without it, and `calls`
# bounds those. So what waits for room in the buffer does not wait for the end of a long command.
UNCOUNTED_BYTES = 64 << 10
PATIENCE_S = 1.0  # a token that is further behind its bytes_per_second must wait before it calls
ROOM = tuple(field.name for field in dataclasses.fields(Room))


@dataclasses.dataclass(frozen=True)
class Quota:
    """The limits of a token. A value without a limit is infinite.

    sandboxes, memory_mb, cpus, disk_mb: what the specs of its living sandboxes may ask for
        together. Without a limit, see `OwnerLimits`.
    snapshot_mb: total size of its snapshots on each node; without a limit: the pool's.
    output_bytes: the largest `output_bytes` of a spec. The service holds that much in memory for
        each command.
    calls: calls in progress at a time.
    buffer_mb: size of all uploads and downloads that the service holds for it at a time, without
        those of up to UNCOUNTED_BYTES; further ones wait.
    bytes_per_second: of bodies, in both directions together. Streams and answers are slowed down.
        The default takes a quarter of a core, which leaves enough for others on a small machine.
    idle_seconds, deadline_seconds: the longest times that a sandbox may live without use, and since
        its start or last renewal; also what a request gets that names none.
    """

    sandboxes: float = math.inf
    memory_mb: float = math.inf
    cpus: float = math.inf
    disk_mb: float = math.inf
    snapshot_mb: float = math.inf
    output_bytes: float = 1 * MB
    calls: float = 512
    buffer_mb: float = 256
    bytes_per_second: float = 16 * MB
    idle_seconds: float = 6 * HOUR_S
    deadline_seconds: float = math.inf

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if not (value := getattr(self, field.name)) > 0:
                raise ValueError(f"limit {field.name} {value} must be more than 0")

    def updated(self, words: Sequence[str]) -> Quota:
        """Returns a quota with other limits, written NAME=NUMBER; inf: none. Errors: ValueError."""
        names, changes = [field.name for field in dataclasses.fields(self)], {}
        for word in words:
            name, _, value = word.partition("=")
            if name not in names:
                raise ValueError(f"limit {word!r:.80}: choose among {', '.join(names)}")
            try:
                changes[name] = float(value)
            except ValueError:
                raise ValueError(f"limit {word!r:.80} must be {name}=NUMBER") from None
        return dataclasses.replace(self, **changes)

    @property
    def room(self) -> Room:
        return Room(*(getattr(self, name) for name in ROOM))

    @property
    def snapshot_bytes(self) -> int | None:
        return int(self.snapshot_mb * MB) if math.isfinite(self.snapshot_mb) else None


DEFAULT_QUOTA = Quota()


def exceeded(name: str, value: float, limit: float, remedy: str, status: int = 403) -> Refusal:
    return Refusal(status, "quota_exceeded", excess(name, value, limit), remedy)


class TenantAccount:
    """What one tenant uses now, and has transferred. For one event loop.

    shares: whether there are other tenants. clock: in seconds. bytes_in, bytes_out: sizes of bodies
    and terminals' frames.
    """

    def __init__(
        self, name: str, quota: Quota, shares: bool, clock: Callable[[], float] = time.monotonic
    ):
        self.name, self.quota = name, quota
        self.calls = self.calls_total = self.bytes_in = self.bytes_out = 0
        self._shares, self._clock = shares, clock
        self._buffered = 0
        self._given_back = asyncio.Event()
        self._balance, self._counted_at = quota.bytes_per_second, clock()

    @property
    def limits(self) -> OwnerLimits:
        return OwnerLimits(self.quota.room, self._shares)

    def check(self, spec: SandboxSpec) -> None:
        """Checks what does not depend on other sandboxes. Errors: Refusal (403)."""
        quota = self.quota
        if spec.output_bytes > quota.output_bytes:
            remedy = "ask for less, and write long output to a file"
            raise exceeded("output_bytes", spec.output_bytes, quota.output_bytes, remedy)
        if not spec.cpus and math.isfinite(quota.cpus):
            message = f"cpus 0 (no limit) is more than this token may use, {quota.cpus:g}"
            raise Refusal(403, "quota_exceeded", message, "set cpus in the spec")

    def time_limit(self, name: str, seconds: float) -> float:
        """Returns the limit for a request that asks for `seconds`; 0: none. Errors: Refusal."""
        limit = getattr(self.quota, name)
        if seconds > limit:
            raise exceeded(name, seconds, limit, "ask for less, and renew the sandbox in time")
        return seconds or (limit if math.isfinite(limit) else 0.0)

    @contextlib.contextmanager
    def call(self) -> Iterator[Ticket]:
        """Counts a call for the duration of the block. Errors: Refusal (429)."""
        if self.calls >= self.quota.calls:
            remedy = "wait until some of your calls have ended"
            raise exceeded("calls", self.calls + 1, self.quota.calls, remedy, 429)
        if (behind := self._behind()) > PATIENCE_S:
            rate = self.quota.bytes_per_second
            message = f"this token is {behind:.1f} s behind its bytes_per_second, {rate:g}"
            raise Refusal(429, "quota_exceeded", message, "transfer less, or wait")
        self.calls += 1
        self.calls_total += 1
        ticket = Ticket(self)
        try:
            yield ticket
        finally:
            self.calls -= 1
            ticket.keep(0)

    async def hold(self, size: int) -> None:
        """Waits until the service may hold `size` more bytes for this tenant. Errors: Refusal."""
        limit = self.quota.buffer_mb * MB
        if size > limit:
            raise exceeded("buffer_mb", size / MB, self.quota.buffer_mb, "transfer it in parts")
        while self._buffered + size > limit:
            self._given_back.clear()
            await self._given_back.wait()
        self._buffered += size

    def give_back(self, size: int) -> None:
        self._buffered -= size
        self._given_back.set()

    async def pay(self, size: int) -> None:
        """Waits while the tenant is behind its bytes per second, then charges `size` bytes."""
        while (seconds := self._behind()) > 0:
            await asyncio.sleep(seconds)
        self._balance -= size

    def _behind(self) -> float:
        """How many seconds it takes to make up for what was transferred too fast."""
        rate, now = self.quota.bytes_per_second, self._clock()
        if math.isinf(rate):
            return 0.0
        self._balance = min(rate, self._balance + rate * (now - self._counted_at))
        self._counted_at = now
        return max(0.0, -self._balance / rate)


async def usages(
    pool: SandboxPool, accounts: Iterable[TenantAccount]
) -> AsyncIterator[TenantUsage]:
    """Yields the usage of each tenant."""
    used = await pool.usage()
    for account in list(accounts):
        limits = dataclasses.asdict(account.quota)
        held = dataclasses.asdict(await pool.held(account.name))
        total = dataclasses.asdict(used.get(account.name, Usage()))
        names = ("bytes_in", "bytes_out")
        total |= {name: getattr(account, name) for name in names} | {"calls": account.calls_total}
        yield TenantUsage(
            account.name,
            now=held | {"calls": account.calls},
            limits={name: each if math.isfinite(each) else None for name, each in limits.items()},
            total=total,
        )


class Ticket:
    """One call in progress, which gives back at its end what it holds. received_bytes: of its body,
    or of a connection's frames, so far."""

    def __init__(self, account: TenantAccount):
        self.account, self.held_bytes, self.received_bytes = account, 0, 0

    async def hold(self, size: int) -> None:
        """See `TenantAccount.hold`. Nothing for up to UNCOUNTED_BYTES."""
        if size > UNCOUNTED_BYTES:
            await self.account.hold(size)
            self.held_bytes += size

    def keep(self, size: int) -> None:
        """Gives back what it holds beyond `size` bytes."""
        kept = size if size > UNCOUNTED_BYTES else 0
        if self.held_bytes > kept:
            self.account.give_back(self.held_bytes - kept)
            self.held_bytes = kept

    async def receive(self, size: int) -> None:
        self.received_bytes += size
        self.account.bytes_in += size
        await self.account.pay(size)

    async def send(self, size: int) -> None:
        self.account.bytes_out += size
        await self.account.pay(size)


class Turns:
    """Lets one piece of a stream pass in each iteration of the event loop, tenant after tenant. So
    a call never waits for more than one piece, and no tenant's streams wait for all of another's.
    """

    def __init__(self):
        self._waiting: dict[str, collections.deque[asyncio.Future[None]]] = {}
        self._passing: asyncio.Task[None] | None = None

    async def wait(self, name: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(name, collections.deque()).append(turn)
        if self._passing is None or self._passing.done():
            self._passing = asyncio.ensure_future(self._pass())
        await turn

    async def _pass(self) -> None:
        while self._waiting:
            name = next(iter(self._waiting))
            turns = self._waiting.pop(name)
            turn = turns.popleft()
            if turns:
                self._waiting[name] = turns  # behind the others
            if not turn.done():  # its stream may have been cancelled
                turn.set_result(None)
                await asyncio.sleep(0)

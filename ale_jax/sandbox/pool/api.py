"""The interface of a sandbox pool, as rollout workers, the service and the fleet page use it."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from ale_jax.sandbox.api import SandboxError, SandboxStats
from ale_jax.sandbox.pool.accounting import Room, Usage
from ale_jax.sandbox.relay import Carried
from ale_jax.sandbox.spec import SandboxSpec

# Methods that `SandboxPool.call` accepts: those of `RenewableSandbox` that exchange plain data.
METHODS = (
    *("run", "open_session", "close_session", "interrupt", "exec", "kill_processes", "stats"),
    *("begin", "send", "expect", "start_job", "jobs", "job", "end_job"),
    *("read", "write", "list", "pack", "unpack", "snapshot", "restore", "reset"),
    *("replace_directory", "renew"),
)


class State(enum.StrEnum):
    """The state of a sandbox. TRANSITIONS (pool/pooled_sandbox.py) lists what may follow."""

    PENDING = "pending"  # waiting for its turn to start
    STARTING = "starting"
    READY = "ready"  # warm: started, but not assigned to a request yet
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"  # `cause` says why


class Cause(enum.StrEnum):
    """Why a sandbox has ended."""

    STOPPED = "stopped"  # by its owner
    IDLE = "idle"  # not used for idle_seconds
    DEADLINE = "deadline"
    START_FAILED = "start_failed"
    LOST = "lost"  # the sandbox or its runner died
    NODE_LOST = "node_lost"
    REDUNDANT = "redundant"  # e.g. others of the same request were ready first
    SHUTDOWN = "shutdown"


@dataclasses.dataclass(frozen=True)
class Change:
    """One state transition of a sandbox. at: seconds since the epoch."""

    at: float
    state: State
    detail: str


@dataclasses.dataclass(frozen=True)
class StartRequest:
    """A request to start a sandbox.

    id: chosen by the caller, so that a repeated request does not start another sandbox; empty: the
    pool chooses. labels: shown in the status. idle_seconds, deadline_seconds: limits on the time
    without use and on the total lifetime; 0: no limit. recreate: a lost sandbox is started again
    under its id, with the next generation number and its files as at the start. snapshot: id of a
    snapshot of its owner, whose files it starts with; empty: none.
    """

    spec: SandboxSpec
    id: str = ""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    idle_seconds: float = 0.0
    deadline_seconds: float = 0.0
    recreate: bool = False
    snapshot: str = ""

    def __post_init__(self) -> None:
        for name in ("idle_seconds", "deadline_seconds"):
            if not (math.isfinite(value := getattr(self, name)) and value >= 0):
                raise ValueError(f"sandbox {name} {value} must be 0 (no limit) or more")


@dataclasses.dataclass(frozen=True)
class Status:
    """A sandbox as its pool sees it.

    generation: 0, incremented each time the sandbox is re-created. busy: calls in progress. stats:
    None if the sandbox is not running or has not reported any. cpu_percent: of one core, between
    the last two reports. silent_seconds: how long the pool has been waiting for an answer.
    """

    id: str
    node: str
    runtime: str
    state: State
    cause: Cause | None
    generation: int
    busy: int
    started_at: float
    used_at: float
    spec: SandboxSpec
    labels: Mapping[str, str]
    history: tuple[Change, ...]
    stats: SandboxStats | None = None
    cpu_percent: float | None = None
    silent_seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class NodeStatus:
    """A machine of the pool. slots: maximum number of sandboxes. used: occupied slots. ready: how
    many of these hold warm sandboxes. reserved, of memory and cpus: what the specs of the sandboxes
    ask for, without warm ones, which make room; capacity: how much of it may be reserved."""

    node: str
    alive: bool
    slots: int
    used: int
    ready: int
    restarts: int
    cpu_percent: float
    memory_bytes: int
    memory_limit_bytes: int
    memory_capacity_mb: int
    memory_reserved_mb: int
    cpus_capacity: float
    cpus_reserved: float


@dataclasses.dataclass(frozen=True)
class SnapshotInfo:
    """id: SHA-256 of the content, so that equal snapshots share one id."""

    id: str
    bytes: int
    taken_at: float


@dataclasses.dataclass(frozen=True)
class PoolEvent:
    """Something that happened in the pool. number: increases with every event, also across restarts
    of the pool. at: seconds since the epoch. sandbox: the id of the sandbox concerned; empty: the
    event concerns a node or the pool."""

    number: int
    at: float
    kind: str
    detail: str
    sandbox: str
    fields: Mapping[str, str | int | float | bool]


@dataclasses.dataclass(frozen=True)
class Events:
    """events: in order. last: number of the pool's latest event. forgotten: number of the latest
    event that was dropped to make room; 0 if none was."""

    events: tuple[PoolEvent, ...]
    last: int
    forgotten: int


class SandboxGone(SandboxError):
    """The sandbox no longer exists (410). cause: None if the pool knows no such sandbox."""

    def __init__(self, id: str, cause: Cause | None):
        told = {
            None: f"there is no sandbox {id!r:.140}",
            Cause.LOST: f"sandbox {id!r:.140} is lost: it or its runner died",
            Cause.NODE_LOST: f"sandbox {id!r:.140} is lost, with its node",
        }
        super().__init__(told.get(cause, f"sandbox {id!r:.140} is gone: {cause}"))
        self.id, self.cause = id, cause

    def __reduce__(self):
        return SandboxGone, (self.id, self.cause)  # so that pickling keeps both arguments


class PoolFull(SandboxError):
    """No node has a free slot with enough memory and cpus (503); try again later."""


class NodeFull(SandboxError):
    """The disk of a node is full (507), which its operator can change, and no sandbox."""


class QuotaExceeded(SandboxError):
    """The token may not have more (403, 429); the message says of what, and how much."""


def excess(name: str, value: float, limit: float) -> str:
    """The message of an error about a limit of a token."""
    return f"{name} {value:.12g} is more than this token may use, {limit:.12g}"


@dataclasses.dataclass(frozen=True)
class OwnerLimits:
    """How much an owner's sandboxes may take together. A pool checks it in the same step in which
    the new sandboxes begin to count as held, so that starts at the same time, also those through
    several front ends, cannot exceed it together.

    room: a field without a limit is infinite. shares: there are other owners, for whom room is left
    where `room` has no limit.
    """

    room: Room
    shares: bool

    def check(self, held: Room, free: Room, more: Room) -> None:
        """held: what the owner's sandboxes take; more: what is asked for in addition; free: what
        the pool has left for all owners. Errors: QuotaExceeded, PoolFull."""
        after = held + more
        for name, value, limit in after.beyond(self.room):
            raise QuotaExceeded(excess(name, value, limit))
        if self.shares:
            self._check_share(after, more, free - more)

    def _check_share(self, after: Room, more: Room, left: Room) -> None:
        """Where an owner has no limit, it may hold as much as it leaves free for others. So the
        next owner always finds half of what is left, however many there are."""
        for field in dataclasses.fields(Room):
            value, rest, own, new = (
                getattr(each, field.name) for each in (after, left, self.room, more)
            )
            if math.isinf(own) and new and value > rest:
                raise PoolFull(
                    f"{field.name}: with {value:g} for you, only {max(rest, 0):g} would be free for"
                    " other tokens; a token without a limit of its own may not use more than it"
                    " leaves"
                )

    def to_json(self) -> dict[str, Any]:
        """JSON has no infinity, so that is null."""
        room = dataclasses.asdict(self.room).items()
        return {
            "room": {name: each if math.isfinite(each) else None for name, each in room},
            "shares": self.shares,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> OwnerLimits:
        """Errors: KeyError, TypeError, ValueError."""
        room = ((f.name, values["room"][f.name]) for f in dataclasses.fields(Room))
        limits = {name: math.inf if each is None else float(each) for name, each in room}
        return cls(Room(**limits), bool(values["shares"]))


class Record(Protocol):
    """Called with each event of the pool, for example `monitor.events.EventLog.record`."""

    def __call__(
        self, kind: str, detail: str, **fields: str | int | float | bool | None
    ) -> None: ...


class SandboxPool(Protocol):
    """The sandboxes of one node or of a whole cluster. Errors of every call on an id: SandboxGone.

    `call` and `stream` behave like the corresponding methods of `AsyncSandbox` and raise their
    errors; arguments and results are plain data and the records of `sandbox/api.py`. A call that is
    in progress when its sandbox dies raises SandboxLost, and so does a call for a `generation` that
    has been replaced. A call without a `generation` goes to the current one, and waits for it while
    the sandbox is being re-created.
    """

    async def start(self, request: StartRequest, limits: OwnerLimits | None = None) -> Status:
        """Returns a running sandbox. limits: of its owner; None: none.

        Errors: SandboxStartError, PoolFull, QuotaExceeded, ValueError.

        If a sandbox with the request's id is running or starting, that one is returned; ValueError
        if its spec or snapshot is different. The id of a sandbox that has ended cannot be used
        again (SandboxGone), unless that sandbox had failed to start. The limits concern new
        sandboxes only.
        """

    async def start_many(
        self, request: StartRequest, count: int, spare: int = 0, limits: OwnerLimits | None = None
    ) -> Sequence[Status]:
        """Starts `count + spare` identical sandboxes and returns the first `count` that are ready.

        Returns all `count` or raises the errors of `start`. Spare sandboxes are only started if
        there are slots for them. If the request has an id, the sandboxes get the ids id-0, id-1,
        ...
        """

    async def stop(self, id: str) -> None: ...

    async def status(self, id: str) -> Status:
        """Also describes a sandbox that has ended, for a while. Does not count as use."""

    async def renew(self, id: str, seconds: float) -> Status:
        """From now, the sandbox lives for `seconds` more; 0: without a deadline. Counts as use."""

    async def statuses(self) -> Sequence[Status]: ...

    async def held(self, owner: str) -> Room:
        """What the sandboxes of `owner` ask for, including those that are starting."""

    async def usage(self) -> Mapping[str, Usage]:
        """What sandboxes have used, by owner. In a cluster, by those of the present nodes."""

    async def call(
        self, id: str, method: str, *, generation: int | None = None, **arguments: Any
    ) -> Any:
        """Calls one of METHODS. ValueError for another one, or for arguments it does not take."""

    def stream(
        self,
        id: str,
        argv: Sequence[str] | str,
        *,
        generation: int | None = None,
        stdin: bytes = b"",
        **arguments: Any,
    ) -> AsyncGenerator[tuple[str, bytes | int], None]:
        """Yields a job's output as it arrives: ("stdout" | "stderr", bytes), then ("exit", code).

        arguments: cwd, env, timeout, terminal, user, as for `AsyncSandbox.spawn`. Closing the
        iterator before its end kills the job.
        """

    def relay(self, id: str, port: int) -> AbstractAsyncContextManager[Carried]:
        """For the duration of the block, programs inside find at `port` of their loopback what the
        far end of the tunnel (`sandbox/relay.py`) dials. Counts as a call.

        Errors: SandboxError if the port is in use. The tunnel's `receive` raises those of a call.
        """

    async def snapshot(self, id: str, max_bytes: int | None = None) -> SnapshotInfo:
        """Stores the sandbox's files for its owner. max_bytes: total size of the owner's snapshots,
        of which the least recently used are removed; None: the pool's."""

    async def restore(self, id: str, snapshot: str) -> None:
        """Resets the sandbox, then restores a snapshot's files. ValueError if its owner has no such
        snapshot."""

    async def fork(
        self, id: str, count: int, max_bytes: int | None = None, limits: OwnerLimits | None = None
    ) -> Sequence[Status]:
        """Starts `count` new sandboxes of the same spec from a new snapshot of its files. They
        belong to the owner of `id`."""

    async def warm(self, spec: SandboxSpec, count: int) -> None:
        """Keeps `count` sandboxes of `spec` ready on each node from now on; 0: none.

        Builds their image first if it is missing, and returns when it is available.
        """

    async def nodes(self) -> Sequence[NodeStatus]: ...

    async def events_after(self, number: int) -> Events:
        """Returns the events after the one with that number, as far as they are still stored."""

    async def close(self) -> None:
        """Stops everything."""

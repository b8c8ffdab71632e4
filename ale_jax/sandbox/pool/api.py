"""What a pool of sandboxes promises: to rollout workers, to the service, to the page."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from ale_jax.sandbox.api import SandboxError, SandboxStats
from ale_jax.sandbox.spec import SandboxSpec

# What `SandboxPool.call` does: the methods of `AsyncSandbox` that take and return plain data.
METHODS = (
    *("run", "open_session", "close_session", "interrupt", "exec", "kill_processes", "stats"),
    *("read", "write", "list", "pack", "unpack", "snapshot", "restore", "reset"),
)


class State(enum.StrEnum):
    """Where a sandbox stands. TRANSITIONS (pool/states.py) says what may follow what."""

    PENDING = "pending"  # waits for its turn to start
    STARTING = "starting"
    READY = "ready"  # warm: started, and nobody's yet
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"  # `cause` says why


class Cause(enum.StrEnum):
    """Why a sandbox is not there any more."""

    STOPPED = "stopped"  # by its owner
    IDLE = "idle"  # nobody used it for idle_seconds
    DEADLINE = "deadline"
    START_FAILED = "start_failed"
    LOST = "lost"  # it died, or its runner did
    NODE_LOST = "node_lost"
    REDUNDANT = "redundant"  # others of the same request were ready first
    SHUTDOWN = "shutdown"


@dataclasses.dataclass(frozen=True)
class Change:
    """One step of a sandbox's life. at: seconds since the epoch."""

    at: float
    state: State
    detail: str


@dataclasses.dataclass(frozen=True)
class StartRequest:
    """id: chosen by the caller, so that a repeated request does not start another; empty: the pool
    chooses. labels: shown in its status. idle_seconds, deadline_seconds: of life without use, and
    altogether; 0: no limit. recreate: a lost one is started again under its id, its generation one
    higher and its files as at the start. snapshot: id of one whose files it starts with; empty:
    none."""

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
    """A sandbox as its pool sees it. generation: 0, and one more for each time it was re-created.
    busy: calls under way. stats: None while it is not running, or if it did not say. cpu_percent:
    of one core, lately. silent_seconds: for which it has owed the pool an answer."""

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
    """A machine of the pool. slots: sandboxes that it may hold; ready: warm ones among them."""

    node: str
    alive: bool
    slots: int
    used: int
    ready: int
    restarts: int
    cpu_percent: float
    memory_bytes: int
    memory_limit_bytes: int


@dataclasses.dataclass(frozen=True)
class SnapshotInfo:
    """id: of its content (sha256), so that equal ones are one."""

    id: str
    bytes: int
    taken_at: float


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that happened. number: higher than those of all before it, also of earlier pools.
    at: seconds since the epoch. sandbox: which it happened to; empty: a node, or the pool."""

    number: int
    at: float
    kind: str
    detail: str
    sandbox: str
    fields: Mapping[str, str | int | float | bool]


@dataclasses.dataclass(frozen=True)
class Events:
    """events: in order. last: number of the pool's last; forgotten: of the last that had to make
    room, 0 if none had."""

    events: tuple[Event, ...]
    last: int
    forgotten: int


class SandboxGone(SandboxError):
    """There is no such sandbox any more (410); `cause` if the pool knew it."""

    def __init__(self, id: str, cause: Cause | None):
        super().__init__(f"sandbox {id!r} is gone" + (f": {cause}" if cause else ""))
        self.id, self.cause = id, cause

    def __reduce__(self):
        return SandboxGone, (self.id, self.cause)  # so that it crosses process borders as it is


class PoolFull(SandboxError):
    """No node has a free slot (503); try again later."""


class Record(Protocol):
    """Told of what happened to the pool: `monitor.events.EventLog.record`, or the like of it."""

    def __call__(self, kind: str, detail: str, **fields: str | int | float | bool) -> None: ...


class SandboxPool(Protocol):
    """One node's sandboxes, or a whole cluster's. Errors of every call on an id: SandboxGone.

    `call` and `stream` do what the method of that name of `AsyncSandbox` does, with its errors;
    arguments and results are plain data and the records of `sandbox/api.py`. A call that was under
    way when its sandbox died raises SandboxLost, and so does one that is meant for a `generation`
    which has been replaced; without a `generation` it is for whichever runs, and waits for it while
    it is being re-created.
    """

    async def start(self, request: StartRequest) -> Status:
        """Returns a running sandbox. Errors: SandboxStartError, PoolFull, ValueError.

        A request whose id runs, or starts, is answered with that one; ValueError if it is of
        another spec or snapshot. An id that has ended is not used again (SandboxGone), unless it
        could not be started.
        """

    async def start_many(
        self, request: StartRequest, count: int, spare: int = 0
    ) -> Sequence[Status]:
        """`count` like ones: the first that are ready out of `count + spare` starts.

        All of them or none: errors as of `start`. Spare ones for which there is no slot are not
        started. With an id, theirs are id-0, id-1, and so on.
        """

    async def stop(self, id: str) -> None: ...

    async def status(self, id: str) -> Status:
        """Also of one that is gone, for a while. Looking does not prolong its life."""

    async def statuses(self) -> Sequence[Status]: ...

    async def call(
        self, id: str, method: str, *, generation: int | None = None, **arguments: Any
    ) -> Any:
        """One of METHODS. ValueError for another, or for arguments that it does not take."""

    def stream(
        self,
        id: str,
        argv: Sequence[str] | str,
        *,
        generation: int | None = None,
        stdin: bytes = b"",
        **arguments: Any,
    ) -> AsyncIterator[tuple[str, bytes | int]]:
        """A job's output as it comes: ("stdout" | "stderr", bytes), at last ("exit", its code).

        arguments: cwd, env, timeout, terminal, as of `AsyncSandbox.spawn`. Who stops reading early
        closes the iterator, which ends the job.
        """

    async def snapshot(self, id: str) -> SnapshotInfo: ...

    async def restore(self, id: str, snapshot: str) -> None:
        """As new, then the working files of a snapshot. ValueError if there is none of that id."""

    async def fork(self, id: str, count: int) -> Sequence[Status]:
        """`count` new sandboxes of the same spec with the same working files."""

    async def warm(self, spec: SandboxSpec, count: int) -> None:
        """From now on, `count` of them are kept ready on each node; 0: none.

        Their image is built before where it is missing; returns when it is there.
        """

    async def nodes(self) -> Sequence[NodeStatus]: ...

    async def events_after(self, number: int) -> Events:
        """What happened since the event of that number, as far as it is remembered."""

    async def close(self) -> None:
        """Stops everything."""

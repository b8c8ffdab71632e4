"""What the service and its clients say to each other: the operations, the records that they are
answered with, and the errors. All of it is plain JSON with the right status, never a traceback.

Routes serve the operations, and clients call them, so that a path or the type of an answer is
written here only. The fields of a request are in `bodies.py`, where an unknown one is refused.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from types import NoneType
from typing import Any, Generic, TypedDict, TypeVar, cast, get_args, get_origin

from ale_jax.sandbox.api import (
    ExecResult,
    Expected,
    FileInfo,
    ImageMissing,
    JobStatus,
    ProcessResult,
    SandboxError,
    SandboxLost,
    SandboxStartError,
    SandboxStats,
)
from ale_jax.sandbox.pool.api import (
    Cause,
    Change,
    NodeFull,
    NodeStatus,
    PoolEvent,
    PoolFull,
    QuotaExceeded,
    SandboxGone,
    SnapshotInfo,
    State,
    Status,
)
from ale_jax.sandbox.spec import SandboxSpec

BUSY_RETRY_S = 1
UNDONE = (408, 429, 503)  # nothing was done: the same request may be sent again as a new one


class Refusal(Exception):
    """An error response. kind: an identifier for programs; remedy: what to do about it; cause: why
    a sandbox is gone."""

    def __init__(self, status: int, kind: str, message: str, remedy: str = "", cause: str = ""):
        super().__init__(message)
        self.status, self.kind, self.message = status, kind, message
        self.remedy, self.cause = remedy, cause

    def content(self) -> dict[str, Any]:
        error = {"kind": self.kind, "message": self.message}
        more = {"remedy": self.remedy, "cause": self.cause}
        return {"error": error | {name: text for name, text in more.items() if text}}

    def headers(self) -> Mapping[str, str]:
        if self.status in UNDONE:
            return {"Retry-After": str(BUSY_RETRY_S)}
        return {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}


# Searched in this order: a class comes before its base classes.
KINDS: tuple[tuple[type[Exception], int, str, str], ...] = (
    (SandboxGone, 410, "sandbox_gone", "start another one"),
    (SandboxLost, 410, "sandbox_lost", "start another one"),
    (PoolFull, 503, "pool_full", "try again later, or stop a sandbox"),
    (QuotaExceeded, 403, "quota_exceeded", "ask for less, or stop a sandbox"),
    (NodeFull, 507, "node_full", "tell the operator of the service"),
    (ImageMissing, 404, "image_missing", ""),
    (SandboxStartError, 500, "start_failed", ""),
    (SandboxError, 409, "sandbox_error", ""),
    (FileNotFoundError, 404, "file_not_found", ""),
    (OSError, 409, "os_error", ""),
    (ValueError, 422, "invalid", ""),
)


def refusal_of(error: Exception) -> Refusal:
    """Returns what a client is told about `error`; of an unexpected one, only that it happened."""
    if isinstance(error, Refusal):
        return error
    for kind, status, name, remedy in KINDS:
        if isinstance(error, kind):
            return Refusal(status, name, str(error), remedy, getattr(error, "cause", None) or "")
    return Refusal(500, "internal", "the service failed", "its log says why")


def not_found(id: str) -> Refusal:
    """For a sandbox that never existed or belongs to another tenant, so that both look the same."""
    return Refusal(404, "not_found", f"there is no sandbox {id!r:.140}", "list your sandboxes")


R = TypeVar("R")


@dataclasses.dataclass(frozen=True)
class EventsAnswer:
    """next: the value of `after` for the next request. missed: events before these were dropped,
    some of which may have concerned your sandboxes."""

    events: tuple[PoolEvent, ...]
    next: int
    missed: bool


@dataclasses.dataclass(frozen=True)
class TenantUsage:
    """What a token uses now, its limits on that (null: none), and what it has used in total since
    the service started: sandbox_seconds, cpu_seconds, bytes_in, bytes_out, calls."""

    tenant: str
    now: Mapping[str, float]
    limits: Mapping[str, float | None]
    total: Mapping[str, float]


class PoolStats(TypedDict):
    """sandboxes: how many of yours are in each state. nodes: how many are alive, with their slots,
    used slots and ready sandboxes together."""

    sandboxes: dict[str, int]
    nodes: int
    slots: int
    used: int
    ready: int


class Interrupted(TypedDict):
    """interrupted: whether a command was running."""

    interrupted: bool


def plain(value: Any) -> Any:
    """Returns `value` with its records as objects, ready for `json`."""
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def value_from(kind: type[R], value: Any) -> R:
    """Reads a value that is a record, a list of them, or plain data. Errors: SandboxError."""
    if get_origin(kind) is list:
        return cast(R, [value_from(get_args(kind)[0], each) for each in _listed(value)])
    if kind is Status:
        return cast(R, status_from(value))
    if kind is EventsAnswer:
        return cast(R, events_from(value))
    return record_from(kind, value) if dataclasses.is_dataclass(kind) else cast(R, value)


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise SandboxError(f"the service did not answer with a list: {value!r:.80}")
    return value


def record_from(kind: type[R], values: Any) -> R:
    """Reads a flat record from a response. Fields that a newer service added are ignored.

    Errors: SandboxError if it is not such a record.
    """
    assert dataclasses.is_dataclass(kind)
    try:
        return kind(**{f.name: values[f.name] for f in dataclasses.fields(kind)})
    except (KeyError, TypeError, ValueError) as error:
        raise _invalid(kind, error) from error


def events_from(values: Any) -> EventsAnswer:
    """Errors: SandboxError."""
    answer = record_from(EventsAnswer, values)
    return dataclasses.replace(
        answer, events=tuple(record_from(PoolEvent, each) for each in answer.events)
    )


def status_from(values: Any) -> Status:
    """Errors: SandboxError."""
    try:
        inner = {
            "state": State(values["state"]),
            "cause": values["cause"] and Cause(values["cause"]),
            "spec": SandboxSpec.from_json(values["spec"]),
            "history": tuple(
                Change(each["at"], State(each["state"]), each["detail"])
                for each in values["history"]
            ),
            "stats": values["stats"] and record_from(SandboxStats, values["stats"]),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise _invalid(Status, error) from error
    return record_from(Status, values | inner)


def _invalid(kind: type, error: Exception) -> SandboxError:
    message = f"the service did not answer with a valid {kind.__name__}: {error!r:.200}"
    return SandboxError(f"{message}; does it have another version?")


CALL_S = 30.0
START_S = 600.0
FILES_S = 120.0
WARM_S = 3600.0  # an image may have to be built


@dataclasses.dataclass(frozen=True)
class Endpoint(Generic[R]):
    """One operation.

    path: with {id} of the sandbox, {session}, {job} or {request}, where it concerns one. answer:
    what the response's JSON holds; `bytes`: its content is not JSON; `NoneType`: it is empty.
    seconds: how long a call may take, unless its arguments say so. ends_with_caller: what it does
    ends if the caller is cancelled.
    """

    method: str
    path: str
    answer: type[R]
    status: int = 200
    seconds: float = CALL_S
    ends_with_caller: bool = False

    def value(self, answer: Any) -> R:
        """Reads the JSON of an answer. Errors: SandboxError if it is of another type."""
        return value_from(self.answer, answer)


BOX = "/v1/sandboxes/{id}"
SESSION = f"{BOX}/sessions/{{session}}"

START = Endpoint("POST", "/v1/sandboxes", Status, 201, START_S, True)
START_MANY = Endpoint("POST", "/v1/sandboxes/many", list[Status], 201, START_S, True)
STATUSES = Endpoint("GET", "/v1/sandboxes", list[Status])
STATUS = Endpoint("GET", BOX, Status)
STOP = Endpoint("DELETE", BOX, NoneType, 204)
SNAPSHOT = Endpoint("POST", f"{BOX}/snapshot", SnapshotInfo, seconds=FILES_S)
RESTORE = Endpoint("POST", f"{BOX}/restore", NoneType, 204, FILES_S)
RENEW = Endpoint("POST", f"{BOX}/renew", Status)
FORK = Endpoint("POST", f"{BOX}/fork", list[Status], 201, START_S, True)
CANCEL = Endpoint("DELETE", "/v1/requests/{request}", NoneType, 204)

RUN = Endpoint("POST", f"{BOX}/run", ExecResult, ends_with_caller=True)
EXEC = Endpoint("POST", f"{BOX}/exec", ProcessResult, ends_with_caller=True)
SPAWN = Endpoint("POST", f"{BOX}/spawn", bytes, seconds=math.inf)
START_JOB = Endpoint("POST", f"{BOX}/jobs", NoneType, 204)
JOBS = Endpoint("GET", f"{BOX}/jobs", list[str])
JOB = Endpoint("GET", f"{BOX}/jobs/{{job}}", JobStatus)
END_JOB = Endpoint("DELETE", f"{BOX}/jobs/{{job}}", NoneType, 204)
OPEN_SESSION = Endpoint("POST", f"{BOX}/sessions", NoneType, 204)
CLOSE_SESSION = Endpoint("DELETE", SESSION, NoneType, 204)
INTERRUPT = Endpoint("POST", f"{SESSION}/interrupt", Interrupted)
BEGIN = Endpoint("POST", f"{SESSION}/begin", NoneType, 204)
SEND = Endpoint("POST", f"{SESSION}/send", NoneType, 204)
EXPECT = Endpoint("POST", f"{SESSION}/expect", Expected, ends_with_caller=True)
RESET = Endpoint("POST", f"{BOX}/reset", NoneType, 204)
MACHINE = Endpoint("POST", f"{BOX}/machine", NoneType, 204, START_S)
KILL_PROCESSES = Endpoint("POST", f"{BOX}/kill", NoneType, 204)

READ = Endpoint("GET", f"{BOX}/files", bytes, seconds=FILES_S)
WRITE = Endpoint("POST", f"{BOX}/files", NoneType, 204, FILES_S)
LIST = Endpoint("GET", f"{BOX}/directory", list[FileInfo])
REPLACE = Endpoint("PUT", f"{BOX}/directory", NoneType, 204, FILES_S)
PACK = Endpoint("GET", f"{BOX}/archive", bytes, seconds=FILES_S)
UNPACK = Endpoint("PUT", f"{BOX}/archive", NoneType, 204, FILES_S)

WARM = Endpoint("PUT", "/v1/warm", NoneType, 204, WARM_S)
NODES = Endpoint("GET", "/v1/nodes", list[NodeStatus])
STATS = Endpoint("GET", "/v1/stats", PoolStats)
USAGE = Endpoint("GET", "/v1/usage", list[TenantUsage])
EVENTS = Endpoint("GET", "/v1/events", EventsAnswer)

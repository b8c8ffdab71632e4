"""The operations of the service: what a client asks for, and what it is answered.

Routes serve them, and clients call them, so that a path or the type of an answer is written here
only. The fields of a request are in `bodies.py`, where an unknown one is refused.
"""

from __future__ import annotations

import dataclasses
import math
from types import NoneType
from typing import Any, Generic, TypeVar

from ale_jax.sandbox.api import ExecResult, Expected, FileInfo, ProcessResult
from ale_jax.sandbox.pool.api import NodeStatus, SnapshotInfo, Status
from ale_jax.sandbox.service.records import (
    EventsAnswer,
    Interrupted,
    PoolStats,
    TenantUsage,
    value_from,
)

T = TypeVar("T")

CALL_S = 30.0
START_S = 600.0
FILES_S = 120.0
WARM_S = 3600.0  # an image may have to be built


@dataclasses.dataclass(frozen=True)
class Endpoint(Generic[T]):
    """One operation.

    path: with {id} of the sandbox and {session}, where it concerns one. answer: what the response's
    JSON holds; `bytes`: its content is not JSON; `NoneType`: it is empty. seconds: how long a call
    may take, unless its arguments say so.
    """

    method: str
    path: str
    answer: type[T]
    status: int = 200
    seconds: float = CALL_S

    def value(self, answer: Any) -> T:
        """Reads the JSON of an answer. Errors: SandboxError if it is of another type."""
        return value_from(self.answer, answer)


BOX = "/v1/sandboxes/{id}"
SESSION = f"{BOX}/sessions/{{session}}"

START = Endpoint("POST", "/v1/sandboxes", Status, 201, START_S)
START_MANY = Endpoint("POST", "/v1/sandboxes/many", list[Status], 201, START_S)
STATUSES = Endpoint("GET", "/v1/sandboxes", list[Status])
STATUS = Endpoint("GET", BOX, Status)
STOP = Endpoint("DELETE", BOX, NoneType, 204)
SNAPSHOT = Endpoint("POST", f"{BOX}/snapshot", SnapshotInfo, seconds=FILES_S)
RESTORE = Endpoint("POST", f"{BOX}/restore", NoneType, 204, FILES_S)
RENEW = Endpoint("POST", f"{BOX}/renew", Status)
FORK = Endpoint("POST", f"{BOX}/fork", list[Status], 201, START_S)

RUN = Endpoint("POST", f"{BOX}/run", ExecResult)
EXEC = Endpoint("POST", f"{BOX}/exec", ProcessResult)
SPAWN = Endpoint("POST", f"{BOX}/spawn", bytes, seconds=math.inf)
OPEN_SESSION = Endpoint("POST", f"{BOX}/sessions", NoneType, 204)
CLOSE_SESSION = Endpoint("DELETE", SESSION, NoneType, 204)
INTERRUPT = Endpoint("POST", f"{SESSION}/interrupt", Interrupted)
BEGIN = Endpoint("POST", f"{SESSION}/begin", NoneType, 204)
SEND = Endpoint("POST", f"{SESSION}/send", NoneType, 204)
EXPECT = Endpoint("POST", f"{SESSION}/expect", Expected)
RESET = Endpoint("POST", f"{BOX}/reset", NoneType, 204)
KILL_PROCESSES = Endpoint("POST", f"{BOX}/kill", NoneType, 204)

READ = Endpoint("GET", f"{BOX}/files", bytes, seconds=FILES_S)
WRITE = Endpoint("POST", f"{BOX}/files", NoneType, 204, FILES_S)
LIST = Endpoint("GET", f"{BOX}/directory", list[FileInfo])
PACK = Endpoint("GET", f"{BOX}/archive", bytes, seconds=FILES_S)
UNPACK = Endpoint("PUT", f"{BOX}/archive", NoneType, 204, FILES_S)

WARM = Endpoint("PUT", "/v1/warm", NoneType, 204, WARM_S)
NODES = Endpoint("GET", "/v1/nodes", list[NodeStatus])
STATS = Endpoint("GET", "/v1/stats", PoolStats)
USAGE = Endpoint("GET", "/v1/usage", list[TenantUsage])
EVENTS = Endpoint("GET", "/v1/events", EventsAnswer)

"""Every operation of the service as a `Call` without input or output: what to send, when to repeat
it, and how its answer is read."""

from __future__ import annotations

import base64
import dataclasses
import json
import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx

from ale_jax.sandbox.api import (
    ExecResult,
    FileInfo,
    ProcessResult,
    SandboxError,
    SandboxLost,
    SandboxStartError,
)
from ale_jax.sandbox.pool.api import (
    Cause,
    NodeStatus,
    PoolFull,
    SandboxGone,
    SnapshotInfo,
    StartRequest,
    Status,
)
from ale_jax.sandbox.service.records import (
    EventsAnswer,
    events_from,
    plain,
    record_from,
    status_from,
)
from ale_jax.sandbox.spec import SandboxSpec

T = TypeVar("T")

# Seconds before each further attempt.
PAUSES = (0.1, 0.5, 2.0)
BUSY = (429, 502, 504)
# What the network and the service may need beyond the time that the call itself takes.
GRACE_S = 30.0
CONNECT_S = 10.0
QUEUE_S = 120.0  # for one of the connections, while all of them are in use
MAX_CONNECTIONS = 256
CHANGES = ("POST", "PUT", "DELETE")


@dataclasses.dataclass(frozen=True)
class Call(Generic[T]):
    """parse: makes the result out of an answer. seconds: what it may take; None: no limit.
    id: of the sandbox that it is about; empty: none."""

    method: str
    path: str
    parse: Callable[[httpx.Response], T]
    id: str = ""
    params: Mapping[str, str | int] = dataclasses.field(default_factory=dict)
    body: Any = None  # becomes JSON
    content: bytes | None = None  # or goes as it is
    content_type: str = ""
    seconds: float | None = GRACE_S

    def request(self, http: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        """With an id of its own if it changes anything, so that it can be sent again."""
        headers = {"X-Request-Id": secrets.token_hex(16)} if self.method in CHANGES else {}
        content, kind = self.content, self.content_type
        if self.body is not None:
            content, kind = json.dumps(self.body).encode(), "application/json"
        if kind:
            headers["Content-Type"] = kind
        read = None if self.seconds is None else self.seconds + GRACE_S
        return http.build_request(
            self.method,
            self.path,
            params=dict(self.params),
            content=content,
            headers=headers,
            timeout=httpx.Timeout(CONNECT_S, read=read, write=GRACE_S, pool=QUEUE_S),
        )


@dataclasses.dataclass(frozen=True)
class Send:
    """Do it, and tell the answer or the httpx.TransportError."""

    request: httpx.Request


@dataclasses.dataclass(frozen=True)
class Pause:
    seconds: float


Step = Send | Pause
Outcome = httpx.Response | httpx.TransportError | None


def exchange(call: Call[T], request: httpx.Request) -> Generator[Step, Outcome, T]:
    """The steps of a call; whoever takes them sends back what came of each.

    After trouble on the way, the same request is sent again: by its id, the service knows it, and
    does not carry it out twice.
    Errors: those of `failure`, and SandboxError if the service cannot be reached.
    """
    for pause in (*PAUSES, None):
        outcome = yield Send(request)
        if isinstance(outcome, httpx.Response) and outcome.status_code not in BUSY:
            if outcome.is_success:
                return call.parse(outcome)
            raise failure(outcome.status_code, outcome.content, call.id)
        if pause is not None:
            yield Pause(pause)
    if isinstance(outcome, httpx.Response):
        raise failure(outcome.status_code, outcome.content, call.id)
    raise unreachable(request, outcome) from outcome


def unreachable(request: httpx.Request, error: Exception) -> SandboxError:
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    return SandboxError(
        f"no answer from {request.url.copy_with(path='/', query=None)} ({what});"
        " type: ale-sandbox serve"
    )


def failure(status: int, body: bytes, id: str) -> Exception:
    """The exception that stands for an answer which is an error."""
    try:
        error = json.loads(body)["error"]
        kind, message, remedy = error["kind"], error["message"], error.get("remedy", "")
        cause = Cause(error["cause"]) if "cause" in error else None
    except (ValueError, TypeError, KeyError):
        return SandboxError(f"the service answered {status}: {body[:200]!r}")
    if id and kind in ("sandbox_gone", "not_found"):
        return SandboxGone(id, cause)
    return EXCEPTIONS.get(kind, SandboxError)(f"{message}; {remedy}" if remedy else message)


EXCEPTIONS: Mapping[str, type[Exception]] = {
    "sandbox_lost": SandboxLost,
    "pool_full": PoolFull,
    "start_failed": SandboxStartError,
    "file_not_found": FileNotFoundError,
    "os_error": OSError,
    "invalid": ValueError,
    "unauthorized": PermissionError,
    "forbidden": PermissionError,
}


def http_options(url: str, token: str | None, verify: Any) -> dict[str, Any]:
    """How both kinds of httpx client are made: one pool of connections, which stay open.

    Errors: ValueError for what is no URL of a service, or no token.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"service url {url!r:.140} must begin with http:// or https://")
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise ValueError("the token holds a blank or another sign that no token has")
    return {
        "base_url": url.rstrip("/"),
        "headers": {"Authorization": f"Bearer {token}"} if token else {},
        "limits": httpx.Limits(
            max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS
        ),
        # Certificates, which take long to read, are only for https.
        "verify": verify if url.startswith("https://") else False,
        "trust_env": False,  # a proxy of the environment's is for the world outside
    }


R = TypeVar("R")

START_S = 600.0
FILES_S = 120.0
WARM_S = 3600.0  # an image may have to be built


def start(request: StartRequest) -> Call[Status]:
    return Call("POST", "/v1/sandboxes", _status, body=plain(request), seconds=START_S)


def start_many(request: StartRequest, count: int, spare: int) -> Call[list[Status]]:
    body = plain(request) | {"count": count, "spare": spare}
    return Call("POST", "/v1/sandboxes/many", _statuses, body=body, seconds=START_S)


def statuses() -> Call[list[Status]]:
    return Call("GET", "/v1/sandboxes", _statuses)


def status(id: str) -> Call[Status]:
    return Call("GET", _path(id), _status, id)


def stop(id: str) -> Call[None]:
    return Call("DELETE", _path(id), _nothing, id)


def run(
    id: str, command: str, timeout: float | None, session: str, limit: float
) -> Call[ExecResult]:
    """limit: seconds that it takes at most."""
    body = {"command": command, "timeout": timeout, "session": session}
    return Call("POST", _path(id, "run"), _one(ExecResult), id, body=body, seconds=limit)


def exec(id: str, process: Mapping[str, Any], limit: float) -> Call[ProcessResult]:
    body = dict(process)
    return Call("POST", _path(id, "exec"), _one(ProcessResult), id, body=body, seconds=limit)


def spawn(id: str, process: Mapping[str, Any]) -> Call[None]:
    return Call("POST", _path(id, "spawn"), _nothing, id, body=dict(process), seconds=None)


def process(
    argv: Sequence[str] | str,
    timeout: float | None,
    stdin: bytes,
    cwd: str,
    env: Mapping[str, str] | None,
) -> dict[str, Any]:
    """A process as the service is told of it."""
    words = argv if isinstance(argv, str) else list(argv)
    values = {"argv": words, "timeout": timeout, "cwd": cwd, "env": dict(env or {})}
    return values | {"stdin": base64.b64encode(stdin).decode()}


def open_session(id: str, name: str, env: Mapping[str, str] | None, cwd: str) -> Call[None]:
    body = {"name": name, "env": dict(env or {}), "cwd": cwd}
    return Call("POST", _path(id, "sessions"), _nothing, id, body=body)


def close_session(id: str, name: str) -> Call[None]:
    return Call("DELETE", _path(id, "sessions", name), _nothing, id)


def interrupt(id: str, session: str, seconds: float) -> Call[bool]:
    path = _path(id, "sessions", session, "interrupt")
    return Call(
        "POST", path, lambda answer: answer.json()["interrupted"], id, body={"seconds": seconds}
    )


def read(id: str, path: str, max_bytes: int) -> Call[bytes]:
    params = {"path": path, "max_bytes": max_bytes}
    return Call("GET", _path(id, "files"), _content, id, params, seconds=FILES_S)


def write(id: str, files: Mapping[str, bytes]) -> Call[None]:
    content, kind = _form(files)
    path = _path(id, "files")
    return Call("POST", path, _nothing, id, content=content, content_type=kind, seconds=FILES_S)


def list_directory(id: str, path: str) -> Call[list[FileInfo]]:
    return Call("GET", _path(id, "directory"), _many(FileInfo), id, {"path": path})


def pack(id: str, path: str) -> Call[bytes]:
    return Call("GET", _path(id, "archive"), _content, id, {"path": path}, seconds=FILES_S)


def unpack(id: str, archive: bytes, path: str) -> Call[None]:
    return Call(
        "PUT",
        _path(id, "archive"),
        _nothing,
        id,
        {"path": path},
        content=archive,
        content_type="application/x-tar",
        seconds=FILES_S,
    )


def snapshot(id: str) -> Call[SnapshotInfo]:
    return Call("POST", _path(id, "snapshot"), _one(SnapshotInfo), id, seconds=FILES_S)


def restore(id: str, snapshot: str) -> Call[None]:
    body = {"snapshot": snapshot}
    return Call("POST", _path(id, "restore"), _nothing, id, body=body, seconds=FILES_S)


def fork(id: str, count: int) -> Call[list[Status]]:
    body = {"count": count}
    return Call("POST", _path(id, "fork"), _statuses, id, body=body, seconds=START_S)


def reset(id: str) -> Call[None]:
    return Call("POST", _path(id, "reset"), _nothing, id)


def kill_processes(id: str) -> Call[None]:
    return Call("POST", _path(id, "kill"), _nothing, id)


def warm(spec: SandboxSpec, count: int) -> Call[None]:
    body = {"spec": plain(spec), "count": count}
    return Call("PUT", "/v1/warm", _nothing, body=body, seconds=WARM_S)


def nodes() -> Call[list[NodeStatus]]:
    return Call("GET", "/v1/nodes", _many(NodeStatus))


def stats() -> Call[dict[str, Any]]:
    return Call("GET", "/v1/stats", lambda answer: answer.json())


def events(after: int | None, limit: int) -> Call[EventsAnswer]:
    params = {"limit": limit} | ({} if after is None else {"after": after})
    return Call("GET", "/v1/events", lambda answer: events_from(answer.json()), params=params)


def _path(id: str, *rest: str) -> str:
    return "/".join(("/v1/sandboxes", *(quote(part, safe="") for part in (id, *rest))))


def _form(files: Mapping[str, bytes]) -> tuple[bytes, str]:
    """A multipart form and its type. Its boundary is random: no file holds it."""
    boundary = secrets.token_hex(24)
    parts = []
    for path, data in files.items():
        name = quote(path, safe="/")
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="file"'
        parts += [head.encode(), b"\r\n\r\n", data, b"\r\n"]
    parts.append(f"--{boundary}--\r\n".encode())
    return b"".join(parts), f"multipart/form-data; boundary={boundary}"


def _nothing(answer: httpx.Response) -> None:
    return None


def _content(answer: httpx.Response) -> bytes:
    return answer.content


def _status(answer: httpx.Response) -> Status:
    return status_from(answer.json())


def _statuses(answer: httpx.Response) -> list[Status]:
    return [status_from(each) for each in answer.json()]


def _one(kind: type[R]) -> Callable[[httpx.Response], R]:
    return lambda answer: record_from(kind, answer.json())


def _many(kind: type[R]) -> Callable[[httpx.Response], list[R]]:
    return lambda answer: [record_from(kind, each) for each in answer.json()]

"""Every operation of the service as a `Call` without input or output: what to send, when to repeat
it, and how to read the answer."""

from __future__ import annotations

import base64
import dataclasses
import json
import secrets
import ssl
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx

from ale_jax.sandbox.api import (
    ExecResult,
    Expected,
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
    QuotaExceeded,
    SandboxGone,
    SnapshotInfo,
    StartRequest,
    Status,
)
from ale_jax.sandbox.service.records import (
    EventsAnswer,
    TenantUsage,
    events_from,
    plain,
    record_from,
    status_from,
)
from ale_jax.sandbox.spec import SandboxSpec

T = TypeVar("T")

# Seconds before each retry; and before the further ones of a client that the service has answered
# before, which is then being restarted.
PAUSES = (0.1, 0.5, 2.0)
RESTART_PAUSES = (2.0,) * 15
BUSY = (429, 502, 504)
# What the network and the service may need in addition to the time of the call itself.
GRACE_S = 30.0
CONNECT_S = 10.0
QUEUE_S = 120.0  # to wait for a connection while all of them are in use
MAX_CONNECTIONS = 256
CHANGES = ("POST", "PUT", "DELETE")


@dataclasses.dataclass(frozen=True)
class Call(Generic[T]):
    """One operation. parse: converts the response into the result. seconds: how long the call may
    take; None: no limit. id: of the sandbox concerned; empty: none."""

    method: str
    path: str
    parse: Callable[[httpx.Response], T]
    id: str = ""
    params: Mapping[str, str | int] = dataclasses.field(default_factory=dict)
    body: Any = None  # sent as JSON
    content: bytes | None = None  # or sent as it is
    content_type: str = ""
    seconds: float | None = GRACE_S

    def request(self, http: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        """Builds the request; one that changes anything gets a unique id, so it can be repeated."""
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
    """Send the request, and report the response or the httpx.TransportError."""

    request: httpx.Request


@dataclasses.dataclass(frozen=True)
class Pause:
    seconds: float


Step = Send | Pause
Outcome = httpx.Response | httpx.TransportError | None


def exchange(
    call: Call[T], request: httpx.Request, has_answered: bool = False
) -> Generator[Step, Outcome, T]:
    """Yields the steps of a call; the caller takes each step and sends back its outcome.

    If the service is busy or the network fails, the same request is sent again. The service
    recognizes it by its id and does not execute it twice. has_answered: whether the service has
    answered this client before.
    Errors: those of `failure`, and SandboxError if the service cannot be reached.
    """
    for pause in (*PAUSES, *(RESTART_PAUSES if has_answered else ()), None):
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
    """Returns the exception for an error response."""
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
    "quota_exceeded": QuotaExceeded,
    "start_failed": SandboxStartError,
    "file_not_found": FileNotFoundError,
    "os_error": OSError,
    "invalid": ValueError,
    "unauthorized": PermissionError,
    "forbidden": PermissionError,
}


def http_options(url: str, token: str | None, tls: ssl.SSLContext | None) -> dict[str, Any]:
    """Returns the options of both kinds of httpx client: one pool of persistent connections.

    Errors: ValueError if `url` is not the URL of a service, or `token` cannot be a token.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"service url {url!r:.140} must begin with http:// or https://")
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise ValueError("the token contains a space or another character that no token may have")
    return {
        "base_url": url.rstrip("/"),
        "headers": {"Authorization": f"Bearer {token}"} if token else {},
        "limits": httpx.Limits(
            max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS
        ),
        "verify": tls or False,
        "trust_env": False,  # proxies of the environment are for external hosts
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
    """limit: maximum duration in seconds."""
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
    """Describes a process in the form that the service expects."""
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


def begin(id: str, command: str, session: str) -> Call[None]:
    path = _path(id, "sessions", session, "begin")
    return Call("POST", path, _nothing, id, body={"command": command})


def send(id: str, text: str, session: str) -> Call[None]:
    path = _path(id, "sessions", session, "send")
    return Call("POST", path, _nothing, id, body={"text": text})


def expect(
    id: str, pattern: str | None, timeout: float | None, session: str, limit: float
) -> Call[Expected]:
    """limit: maximum duration in seconds."""
    path = _path(id, "sessions", session, "expect")
    body = {"pattern": pattern, "timeout": timeout}
    return Call("POST", path, _one(Expected), id, body=body, seconds=limit)


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


def renew(id: str, seconds: float) -> Call[Status]:
    return Call("POST", _path(id, "renew"), _status, id, body={"seconds": seconds})


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


def usage() -> Call[list[TenantUsage]]:
    return Call("GET", "/v1/usage", _many(TenantUsage))


def events(after: int | None, limit: int) -> Call[EventsAnswer]:
    params = {"limit": limit} | ({} if after is None else {"after": after})
    return Call("GET", "/v1/events", lambda answer: events_from(answer.json()), params=params)


def _path(id: str, *rest: str) -> str:
    return "/".join(("/v1/sandboxes", *(quote(part, safe="") for part in (id, *rest))))


def _form(files: Mapping[str, bytes]) -> tuple[bytes, str]:
    """Returns a multipart form and its content type. A random boundary cannot occur in a file."""
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

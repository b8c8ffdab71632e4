"""Every operation of the service as a `Call`: its request, and how its answer is read."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from ale_jax.sandbox.api import ExecResult, FileInfo, ProcessResult
from ale_jax.sandbox.pool.api import NodeStatus, SnapshotInfo, StartRequest, Status
from ale_jax.sandbox.sdk.exchange import Call
from ale_jax.sandbox.service.records import (
    EventsAnswer,
    events_from,
    plain,
    record_from,
    status_from,
)
from ale_jax.sandbox.spec import SandboxSpec

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

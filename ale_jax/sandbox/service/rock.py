"""ROCK's routes, as far as rl-rock 1.11 uses them: its clients work when they change base_url.

Every answer is {"status": "Success" | "Failed", "message", "error", "result"} with status 200 of
HTTP, as there; a token is sent as `extra_headers={"Authorization": "Bearer TOKEN"}`.
"""

from __future__ import annotations

import json
import logging
import shlex
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request, Response

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.pool.api import SandboxGone
from ale_jax.sandbox.service.caller import Caller
from ale_jax.sandbox.service.errors import Refusal, refusal_of
from ale_jax.sandbox.service.multipart import parse_form
from ale_jax.sandbox.service.replies import JSON, caller_of
from ale_jax.sandbox.service.rock_spec import RockOptions, start_request
from ale_jax.sandbox.service.rock_starts import Starts, described, described_start

PREFIX = "/apis/envs/sandbox/v1"
OK, BAD_REQUEST, INTERNAL, COMMAND = 2000, 4000, 5000, 6000
MAX_READ = 16 << 20
# $1 is the path; the content comes through standard input.
WRITE = 'mkdir -p "$(dirname "$1")" && cat > "$1"'

log = logging.getLogger(__name__)


class CommandFailed(Exception):
    """A command's end that ROCK's client wants as an exception."""


class Rock:
    """What the routes do. Each takes the caller and the request's fields; the result is ROCK's."""

    def __init__(self, options: RockOptions):
        self._options, self._starts = options, Starts()

    async def start_async(self, by: Caller, body: dict[str, Any]) -> Any:
        id = body.get("sandbox_id") or uuid.uuid4().hex
        request = start_request(body, id, self._options)
        self._starts.begin(by, request)
        asked = {name: body.get(name) for name in ("cpus", "memory", "disk")}
        return {"sandbox_id": id, "host_name": "", "host_ip": "", **asked}

    async def get_status(self, by: Caller, body: dict[str, Any]) -> Any:
        id = _id(body)
        if start := self._starts.find(by, id):
            return described_start(start)
        return described(await by.status(id))

    async def is_alive(self, by: Caller, body: dict[str, Any]) -> Any:
        status = await self.get_status(by, body)
        return {"is_alive": status["is_alive"], "message": status["host_name"]}

    async def get_token(self, by: Caller, body: dict[str, Any]) -> Any:
        raise ValueError("there is no object storage: files come through upload")

    async def stop(self, by: Caller, body: dict[str, Any]) -> Any:
        id = _id(body)
        if start := self._starts.find(by, id):
            await self._starts.cancel(start)
        else:
            await by.stop(id)

    async def delete(self, by: Caller, body: dict[str, Any]) -> Any:
        try:
            await self.stop(by, body)
        except SandboxGone:
            log.info("%s was gone before it was deleted", _id(body))

    async def restart(self, by: Caller, body: dict[str, Any]) -> Any:
        await by.own(_id(body))
        raise ValueError("nothing of a stopped sandbox is kept; start one from a snapshot")

    async def execute(self, by: Caller, body: dict[str, Any]) -> Any:
        done = await by.call(
            _id(body),
            "exec",
            argv=body["command"],
            timeout=body.get("timeout"),
            cwd=body.get("cwd") or "/work",
            env=body.get("env"),
        )
        if done.timed_out:
            raise CommandFailed(f"Command execution failed due to timeout: {done.stderr:.2000}")
        return {"stdout": done.stdout, "stderr": done.stderr, "exit_code": done.exit_code}

    async def create_session(self, by: Caller, body: dict[str, Any]) -> Any:
        id, name = _id(body), body["session"]
        if body.get("remote_user") not in (None, "root"):
            raise ValueError("remote_user: sessions run as root")
        await by.call(id, "open_session", name=name, env=body.get("env"))
        output = []
        for path in body.get("startup_source") or ():
            command = f"source {shlex.quote(path)}"
            output.append((await by.call(id, "run", command=command, session=name)).output)
        return {"output": "".join(output), "session_type": "bash"}

    async def run_in_session(self, by: Caller, body: dict[str, Any]) -> Any:
        arguments = {"command": body["command"], "timeout": body.get("timeout")}
        done = await by.call(_id(body), "run", **arguments, session=body["session"])
        output = done.output.strip()  # as ROCK does
        if done.timed_out:
            raise CommandFailed(f"Command execution failed due to timeout: {output}")
        if done.exit_code and body.get("check", "raise") == "raise":
            raise CommandFailed(f"exit code {done.exit_code}: {output}")
        return {
            "session_type": "bash",
            "output": output,
            "exit_code": done.exit_code,
            "failure_reason": "",
            "expect_string": "",
        }

    async def close_session(self, by: Caller, body: dict[str, Any]) -> Any:
        await by.call(_id(body), "close_session", name=body["session"])
        return {"session_type": "bash"}

    async def read_file(self, by: Caller, body: dict[str, Any]) -> Any:
        data = await by.call(_id(body), "read", path=body["path"], max_bytes=MAX_READ)
        content = data.decode(body.get("encoding") or "utf-8", body.get("errors") or "strict")
        return {"content": content}

    async def write_file(self, by: Caller, body: dict[str, Any]) -> Any:
        await _write(by, _id(body), body["path"], body["content"].encode())

    async def upload(self, by: Caller, body: dict[str, Any]) -> Any:
        await _write(by, _id(body), body["target_path"].decode(), body["file"])

    async def batch(self, by: Caller, body: dict[str, Any]) -> Any:
        return [await self.get_status(by, {"sandbox_id": id}) for id in body["sandbox_ids"]]


GETS = ("get_status", "is_alive", "get_token")
POSTS = (
    *("start_async", "stop", "delete", "restart", "execute", "create_session", "run_in_session"),
    *("close_session", "read_file", "write_file"),
)


def front(options: RockOptions | None = None) -> APIRouter:
    """The routes, for `create_app`."""
    rock = Rock(options or RockOptions())
    router = APIRouter(prefix=PREFIX, tags=["rock"])

    async def query(request: Request) -> dict[str, Any]:
        return dict(request.query_params)

    for name in GETS:
        router.get(f"/{name}", name=name)(_route(getattr(rock, name), query))
    for name in POSTS:
        router.post(f"/{name}", name=name)(_route(getattr(rock, name), _json))
    router.post("/sandboxes/batch", name="batch")(_route(rock.batch, _json))
    router.post("/upload", name="upload")(_route(rock.upload, _form))
    return router


def _route(
    act: Callable[[Caller, dict[str, Any]], Awaitable[Any]],
    read: Callable[[Request], Awaitable[dict[str, Any]]],
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            result = await act(await caller_of(request), await read(request))
        except Exception as error:
            code, message = _failure(error)
            request.scope["failure"] = f"rock_{code}"
            envelope = {"status": "Failed", "message": None, "error": message}
            result = {"code": code, "exit_code": None, "failure_reason": message}
        else:
            envelope = {"status": "Success", "message": None, "error": None}
        return Response(json.dumps({**envelope, "result": result}), media_type=JSON)

    answer.__name__ = f"rock_{act.__name__}"
    answer.__doc__ = f"`{act.__name__}` as in ROCK 1.11."
    return answer


def _failure(error: Exception) -> tuple[int, str]:
    if isinstance(error, CommandFailed):
        return COMMAND, str(error)
    if isinstance(error, KeyError | TypeError | AttributeError | UnicodeError | LookupError):
        log.info("a request of ROCK's client was refused", exc_info=error)
        return BAD_REQUEST, f"the request has a field too few, or of another type: {error}"
    refusal: Refusal = refusal_of(error)
    if refusal.kind == "internal":
        log.exception("a request of ROCK's client failed")
    return (INTERNAL if refusal.status >= 500 else BAD_REQUEST), refusal.message


async def _json(request: Request) -> dict[str, Any]:
    body = await request.json()
    if not isinstance(body, dict):
        raise ValueError(f"body {body!r:.80} must be an object")
    return body


async def _form(request: Request) -> dict[str, Any]:
    parts = parse_form(request.headers.get("content-type", ""), await request.body())
    form = {part.name: part.data for part in parts}
    return form | {"sandbox_id": form["sandbox_id"].decode()}


def _id(body: dict[str, Any]) -> str:
    id = body["sandbox_id"]
    if not isinstance(id, str):
        raise ValueError(f"sandbox_id {id!r:.80} must be a text")
    return id


async def _write(by: Caller, id: str, path: str, content: bytes) -> None:
    """To anywhere that the sandbox's user may write. Errors: SandboxError."""
    if "\0" in path:
        raise ValueError(f"path {path!r:.140} holds a NUL")
    argv = ["sh", "-c", WRITE, "sh", path]
    done = await by.call(id, "exec", argv=argv, stdin=content)
    if done.exit_code:
        raise SandboxError(f"cannot write {path!r:.140}: {done.stderr.strip():.500}")

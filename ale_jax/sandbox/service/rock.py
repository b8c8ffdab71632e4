"""ROCK's routes, as far as rl-rock 1.11 uses them: its clients work after a change of base_url.

Every answer is {"status": "Success" | "Failed", "message", "error", "result"} with HTTP status 200,
as in ROCK; a token is sent as `extra_headers={"Authorization": "Bearer TOKEN"}`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import shlex
import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from fastapi import APIRouter, Request, Response

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.pool.api import SandboxGone
from ale_jax.sandbox.service.bodies import JSON, caller_of
from ale_jax.sandbox.service.caller import Caller
from ale_jax.sandbox.service.protocol import Refusal, refusal_of
from ale_jax.sandbox.service.rock_commands import RockModels
from ale_jax.sandbox.service.rock_sandboxes import RockSandboxes
from ale_jax.sandbox.service.rock_spec import (
    BatchBody,
    CreateSessionBody,
    ExecuteBody,
    ReadFileBody,
    RockBody,
    RockOptions,
    RockRunBody,
    RockSandboxBody,
    RockSessionBody,
    RockStartBody,
    UploadForm,
    WriteFileBody,
    parse,
    start_request,
)
from ale_jax.sandbox.service.uploads import parse_form

PREFIX = "/apis/envs/sandbox/v1"
BAD_REQUEST, INTERNAL, COMMAND = 4000, 5000, 6000
MAX_READ = 16 << 20
PATIENCE_S = 2.0  # the client polls every 3 s, and a start takes less than 1 s
# $1 is the path; the content comes from standard input.
WRITE = 'mkdir -p -- "$(dirname -- "$1")" && cat > "$1"'
# The end of a background command of ROCK's client; `disown` fails if it has ended already.
NOHUP_END, OR_HAS_ENDED = "PIDEND;disown", " 2> /dev/null || :"
OBSERVATION = {
    "session_type": "bash",
    "output": "",
    "exit_code": 0,
    "failure_reason": "",
    "expect_string": "",
}
# How the client sees whether such a command has ended. It sleeps for 5 s or more if not.
LOOK = re.compile(r"\Akill -0 (\d+)\Z")
PATIENT = r"for _ in 1 2 3 4 5; do kill -0 \1 2> /dev/null || break; sleep 0.05; done; kill -0 \1"
LATE = "Command execution failed due to timeout"

Act = Callable[[Caller, Any], Awaitable[Any]]

log = logging.getLogger(__name__)


class CommandFailed(Exception):
    """A command's outcome that ROCK's client expects as an error."""


class Rock:
    """Implements the routes. Each takes the caller and the request's body; the result is ROCK's."""

    def __init__(self, options: RockOptions):
        self._options, self._sandboxes, self._models = options, RockSandboxes(), RockModels()

    def routes(self) -> Iterable[tuple[str, str, Act, type[RockBody]]]:
        """Yields method, path, handler and body of each route."""
        yield "POST", "/start_async", self.start_async, RockStartBody
        yield "GET", "/get_status", self.get_status, RockSandboxBody
        yield "GET", "/is_alive", self.is_alive, RockSandboxBody
        yield "POST", "/sandboxes/batch", self.batch, BatchBody
        yield "POST", "/stop", self.stop, RockSandboxBody
        yield "POST", "/restart", self.restart, RockSandboxBody
        yield "POST", "/delete", self.delete, RockSandboxBody
        yield "POST", "/execute", self.execute, ExecuteBody
        yield "POST", "/create_session", self.create_session, CreateSessionBody
        yield "POST", "/run_in_session", self.run_in_session, RockRunBody
        yield "POST", "/close_session", self.close_session, RockSessionBody
        yield "POST", "/read_file", self.read_file, ReadFileBody
        yield "POST", "/write_file", self.write_file, WriteFileBody
        yield "POST", "/upload", self.upload, UploadForm
        yield "GET", "/get_token", self.refuse_storage, RockBody
        yield "POST", "/commit", self.refuse_images, RockSandboxBody
        yield "GET", "/commit/{sandbox_id}", self.refuse_images, RockSandboxBody
        yield "POST", "/sandboxes/{sandbox_id}/archive", self.refuse_images, RockSandboxBody

    async def start_async(self, by: Caller, body: RockStartBody) -> Any:
        id = body.sandbox_id or uuid.uuid4().hex
        keep_seconds = self._options.keep_seconds
        if body.auto_delete_seconds is not None:
            keep_seconds = min(keep_seconds, body.auto_delete_seconds)
        self._sandboxes.begin(by, start_request(body, id, self._options), keep_seconds)
        asked = {"cpus": body.cpus, "memory": body.memory, "disk": body.disk}
        return {"sandbox_id": id, "host_name": "", "host_ip": "", **asked}

    async def get_status(self, by: Caller, body: RockSandboxBody) -> Any:
        await self._sandboxes.wait_for_start(by, body.sandbox_id, PATIENCE_S)
        return await self._sandboxes.describe(by, body.sandbox_id)

    async def is_alive(self, by: Caller, body: RockSandboxBody) -> Any:
        status = await self.get_status(by, body)
        return {"is_alive": status["is_alive"], "message": status["host_name"]}

    async def batch(self, by: Caller, body: BatchBody) -> Any:
        """Sandboxes that do not exist are left out, as in ROCK."""
        statuses = []
        for id in body.sandbox_ids:
            with contextlib.suppress(Refusal, SandboxGone):
                statuses.append(await self._sandboxes.describe(by, id))
        return {"statuses": statuses}

    async def stop(self, by: Caller, body: RockSandboxBody) -> Any:
        self._models.forget(await self._sandboxes.stop(by, body.sandbox_id))

    async def restart(self, by: Caller, body: RockSandboxBody) -> Any:
        await self._sandboxes.restart(by, body.sandbox_id)
        return {"sandbox_id": body.sandbox_id, "host_name": "", "host_ip": ""}

    async def delete(self, by: Caller, body: RockSandboxBody) -> Any:
        self._models.forget(await self._sandboxes.delete(by, body.sandbox_id))

    async def execute(self, by: Caller, body: ExecuteBody) -> Any:
        done = await self._call(
            by,
            body,
            "exec",
            argv=body.command,
            timeout=body.timeout,
            cwd=body.cwd or "/work",
            env=body.env,
        )
        if done.timed_out:
            raise CommandFailed(f"{LATE}: {done.stderr:.2000}")
        return {"stdout": done.stdout, "stderr": done.stderr, "exit_code": done.exit_code}

    async def create_session(self, by: Caller, body: CreateSessionBody) -> Any:
        session = {"name": body.session, "env": body.env, "user": body.remote_user or ""}
        await self._call(by, body, "open_session", **session)
        output = []
        for path in body.startup_source:
            command = f"source {shlex.quote(path)}"
            done = await self._call(by, body, "run", command=command, session=body.session)
            output.append(done.output)
        return {"output": "".join(output), "session_type": "bash"}

    async def run_in_session(self, by: Caller, body: RockRunBody) -> Any:
        id = self._sandboxes.present_id(by, body.sandbox_id)
        idle_seconds = self._sandboxes.idle_seconds(by, body.sandbox_id)
        if (output := await self._models.run(by, id, body, idle_seconds)) is not None:
            return OBSERVATION | {"output": output}
        command = LOOK.sub(PATIENT, body.command)
        command += OR_HAS_ENDED if command.endswith(NOHUP_END) else ""
        arguments = {"command": command, "timeout": body.timeout, "session": body.session}
        done = await self._call(by, body, "run", **arguments)
        output = done.output.strip()  # as ROCK does
        if done.timed_out:
            raise CommandFailed(f"{LATE}: {output}")
        if done.exit_code and body.check == "raise":
            raise CommandFailed(f"exit code {done.exit_code}: {output}")
        return OBSERVATION | {"output": output, "exit_code": done.exit_code}

    async def close_session(self, by: Caller, body: RockSessionBody) -> Any:
        await self._call(by, body, "close_session", name=body.session)
        return {"session_type": "bash"}

    async def read_file(self, by: Caller, body: ReadFileBody) -> Any:
        data = await self._call(by, body, "read", path=body.path, max_bytes=MAX_READ + 1)
        if len(data) > MAX_READ:
            raise ValueError(f"{body.path!r:.140} has more than {MAX_READ} bytes: read some lines")
        return {"content": data.decode(body.encoding or "utf-8", body.errors or "strict")}

    async def write_file(self, by: Caller, body: WriteFileBody) -> Any:
        await self._write(by, body, body.path, body.content.encode())

    async def upload(self, by: Caller, body: UploadForm) -> Any:
        id = self._sandboxes.present_id(by, body.sandbox_id)
        if not await self._models.take_file(by, id, body.target_path, body.file):
            await self._write(by, body, body.target_path, body.file)

    async def refuse_storage(self, by: Caller, body: RockBody) -> Any:
        raise ValueError("there is no object storage: use upload for files")

    async def refuse_images(self, by: Caller, body: RockSandboxBody) -> Any:
        await by.check(self._sandboxes.present_id(by, body.sandbox_id))
        raise ValueError(
            "there is no registry that an image could be pushed to: keep files with"
            " POST /v1/sandboxes/ID/snapshot, or name an image's recipe (ale-sandbox images)"
        )

    async def _call(self, by: Caller, body: RockSandboxBody, method: str, **arguments: Any) -> Any:
        id = self._sandboxes.present_id(by, body.sandbox_id)
        return await by.call(id, method, **arguments)

    async def _write(self, by: Caller, body: RockSandboxBody, path: str, content: bytes) -> None:
        """Writes a file anywhere that the sandbox's user may write. Errors: SandboxError."""
        if "\0" in path:
            raise ValueError(f"path {path!r:.140} contains a NUL")
        argv = ["sh", "-c", WRITE, "sh", path]
        done = await self._call(by, body, "exec", argv=argv, stdin=content)
        if done.exit_code:
            raise SandboxError(f"cannot write {path!r:.140}: {done.stderr.strip():.500}")


def front(options: RockOptions | None = None) -> APIRouter:
    """Returns the routes, for `create_app`."""
    router = APIRouter(prefix=PREFIX, tags=["rock"])
    for method, path, act, kind in Rock(options or RockOptions()).routes():
        router.add_api_route(path, _route(act, kind), methods=[method], name=act.__name__)
    return router


def _route(act: Act, kind: type[RockBody]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            body = parse(kind, await _fields(request) | request.path_params)
            result = await act(await caller_of(request), body)
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
    refusal: Refusal = refusal_of(error)
    if refusal.kind == "internal":
        log.exception("a request of ROCK's client failed")
    return (INTERNAL if refusal.status >= 500 else BAD_REQUEST), refusal.message


async def _fields(request: Request) -> dict[str, Any]:
    if request.method == "GET":
        return dict(request.query_params)
    kind = request.headers.get("content-type", "")
    if kind.startswith("multipart/"):
        parts = parse_form(kind, await request.body())
        return {p.name: p.data if p.filename else p.data.decode() for p in parts}
    body = await request.json()
    if not isinstance(body, dict):
        raise ValueError(f"body {body!r:.80} must be an object")
    return body

"""Routes for one sandbox: its life cycle, its files, and the commands in it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Send

from ale_jax.sandbox.service import protocol, uploads
from ale_jax.sandbox.service.answers import Answer
from ale_jax.sandbox.service.bodies import (
    BYTES,
    ERRORS,
    NDJSON,
    TAR,
    BeginBody,
    By,
    ExpectBody,
    ForkBody,
    Id,
    InterruptBody,
    Job,
    JobBody,
    MachineBody,
    ProcessBody,
    RenewBody,
    RequestId,
    RestoreBody,
    RunBody,
    SendBody,
    Session,
    SessionBody,
    StartBody,
    StartManyBody,
    binary,
    nothing,
    raw_body,
    reply,
    serves,
)
from ale_jax.sandbox.service.protocol import refusal_of
from ale_jax.sandbox.service.uploads import parse_form

sandbox_router = APIRouter(tags=["sandboxes"], responses=ERRORS)


@serves(sandbox_router, protocol.START)
async def start(body: StartBody, by: By) -> Response:
    """Starts a sandbox; answers when it is running, with 200 if one with this id was there before.
    500 `start_failed` says in which phase the start failed; 503 `pool_full` says that no slot is
    free at the moment."""
    was_there = bool(body.id) and await by.has(body.id)
    return reply(await by.start(body.request()), 200 if was_there else 201)


@serves(sandbox_router, protocol.START_MANY)
async def start_many(body: StartManyBody, by: By) -> Response:
    """Starts `count + spare` identical sandboxes; answers when the first `count` of them are
    running, and stops the rest."""
    return reply(await by.start_many(body.request(), body.count, body.spare), 201)


@serves(sandbox_router, protocol.CANCEL)
async def cancel(request: RequestId, http: Request, by: By) -> Response:
    """Ends a request of yours for whose answer nobody waits, named by its `X-Request-Id`: a command
    is interrupted, and what was started is stopped, also if it was just done. A request that is
    still on its way is refused when it arrives."""
    answer = await http.app.state.guard.cancel(by.tenant, request)
    if hasattr(by.pool, "cancel_request"):  # another process executes what is asked for
        await by.pool.cancel_request(by.tenant.name, request)
    for id in _started(answer):
        await by.stop(id)
    return nothing()


def _started(answer: Answer | None) -> list[str]:
    """The sandboxes that a request has started."""
    if answer is None or answer.status != protocol.START.status:
        return []
    content = json.loads(answer.body)
    return [each["id"] for each in (content if isinstance(content, list) else [content])]


@serves(sandbox_router, protocol.STATUSES)
async def list_sandboxes(by: By) -> Response:
    """Lists your sandboxes; for an administrator, everybody's."""
    return reply(await by.statuses())


@serves(sandbox_router, protocol.STATUS)
async def status(id: Id, by: By) -> Response:
    """Returns the status of a sandbox, for a while also after its end. Does not count as use."""
    return reply(await by.status(id))


@serves(sandbox_router, protocol.STOP)
async def stop(id: Id, by: By) -> Response:
    """Stops a sandbox and frees its resources."""
    await by.stop(id)
    return nothing()


@serves(sandbox_router, protocol.SNAPSHOT)
async def snapshot(id: Id, by: By) -> Response:
    """Stores the working files of a sandbox. The answer's id, a hash of the content, can be passed
    to `start` by the sandbox's owner. Beyond the owner's quota, the least recently used of the
    owner's snapshots are removed."""
    return reply(await by.snapshot(id))


@serves(sandbox_router, protocol.RESTORE)
async def restore(id: Id, body: RestoreBody, by: By) -> Response:
    """Resets a sandbox, then restores the working files of a snapshot. 422 if there is no snapshot
    with that id."""
    await by.restore(id, body.snapshot)
    return nothing()


@serves(sandbox_router, protocol.RENEW)
async def renew(id: Id, body: RenewBody, by: By) -> Response:
    """Sets how long a sandbox lives from now on. Counts as use."""
    return reply(await by.renew(id, body.seconds))


@serves(sandbox_router, protocol.FORK)
async def fork(id: Id, body: ForkBody, by: By) -> Response:
    """Starts new sandboxes of the same spec with the same working files."""
    return reply(await by.fork(id, body.count), 201)


command_router = APIRouter(tags=["commands"], responses=ERRORS)

MAX_WAIT_S = 3600.0
Seconds = Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="To wait for its end.")]

log = logging.getLogger(__name__)


@serves(command_router, protocol.RUN)
async def run(id: Id, body: RunBody, by: By) -> Response:
    """Runs a command in a session and returns its output. A non-zero exit code is not an error.

    With an `X-Request-Id`, the command runs to its end even if the client disconnects, and the same
    request gets its result. Without one, nobody could get it, and the command is interrupted.
    """
    arguments = {"command": body.command, "timeout": body.timeout, "session": body.session}
    return reply(await by.call(id, "run", **arguments))


@serves(command_router, protocol.EXEC)
async def exec_process(id: Id, body: ProcessBody, by: By) -> Response:
    """Runs one process outside every session; returns the head and tail of its output."""
    return reply(await by.call(id, "exec", **body.arguments()))


@serves(
    command_router,
    protocol.SPAWN,
    response_class=StreamingResponse,
    responses={200: {"content": {NDJSON: {}}}},
)
async def spawn(id: Id, body: ProcessBody, by: By) -> Response:
    """Starts one process and streams its output as lines of JSON.

    `{"stdout": BASE64}` and `{"stderr": BASE64}` are sent as the output arrives; the last line is
    `{"exit": CODE}` or `{"error": {...}}`. A stream without such a last line is incomplete. If the
    client disconnects, the process is killed. Without `timeout` there is no time limit. A spawn
    cannot be repeated by its request id.
    """
    # Not server-sent events: a browser reconnects by itself, which would start the process again,
    # and such events cannot carry bytes.
    lines = _lines(await by.stream(id, **body.arguments()))
    return ClosingResponse(lines, media_type=NDJSON, headers={"Cache-Control": "no-store"})


@serves(command_router, protocol.START_JOB)
async def start_job(id: Id, body: JobBody, by: By) -> Response:
    """Starts a process that goes on without you, and answers at once. 409 if there is a job with
    its name, or are too many. It does not count as use of the sandbox."""
    await by.call(id, "start_job", name=body.name, **body.arguments())
    return nothing()


@serves(command_router, protocol.JOBS)
async def jobs(id: Id, by: By) -> Response:
    """Lists the names of the jobs, also of those whose process has ended."""
    return reply(await by.call(id, "jobs"))


@serves(command_router, protocol.JOB)
async def job(id: Id, job: Job, by: By, seconds: Seconds = 0.0) -> Response:
    """Returns head and tail of what a job has written, and its exit code, which is null while it
    runs. Waits for its end for `seconds`. 409 if there is no such job."""
    return reply(await by.call(id, "job", name=job, seconds=seconds))


@serves(command_router, protocol.END_JOB)
async def end_job(id: Id, job: Job, by: By) -> Response:
    """Kills a job and everything that it has started, and forgets it. 409 if there is none."""
    await by.call(id, "end_job", name=job)
    return nothing()


@serves(command_router, protocol.OPEN_SESSION)
async def open_session(id: Id, body: SessionBody, by: By) -> Response:
    """Opens another bash session. 409 if the name is in use."""
    arguments = {"name": body.name, "env": body.env, "cwd": body.cwd, "user": body.user}
    await by.call(id, "open_session", **arguments)
    return nothing()


@serves(command_router, protocol.CLOSE_SESSION)
async def close_session(id: Id, session: Session, by: By) -> Response:
    """Kills everything that runs in a session, and closes it. 409 if there is no such session."""
    await by.call(id, "close_session", name=session)
    return nothing()


@serves(command_router, protocol.INTERRUPT)
async def interrupt(id: Id, session: Session, body: InterruptBody, by: By) -> Response:
    """Sends Ctrl-C to the session's command. `{"interrupted": false}` if none was running."""
    done = await by.call(id, "interrupt", session=session, seconds=body.seconds)
    return reply({"interrupted": done})


@serves(command_router, protocol.BEGIN)
async def begin(id: Id, session: Session, body: BeginBody, by: By) -> Response:
    """Starts a command in a session, on a terminal, and answers at once. 409 if it is busy.

    `expect` reads its output, `send` types its input, and `interrupt` is Ctrl-C.
    """
    size = {"rows": body.rows, "columns": body.columns}
    await by.call(id, "begin", command=body.command, session=session, **size)
    return nothing()


@serves(command_router, protocol.SEND)
async def send(id: Id, session: Session, body: SendBody, by: By) -> Response:
    """Types text into the command that `begin` has started. 409 if none runs, or it does not read
    its input."""
    await by.call(id, "send", text=body.text, session=session)
    return nothing()


@serves(command_router, protocol.EXPECT)
async def expect(id: Id, session: Session, body: ExpectBody, by: By) -> Response:
    """Reads what the command that `begin` has started writes, until it matches a pattern, the
    command ends, or the time is over; then the command goes on. 409 if there was no such command.
    """
    arguments = {"pattern": body.pattern, "timeout": body.timeout}
    return reply(await by.call(id, "expect", session=session, **arguments))


@serves(command_router, protocol.RESET)
async def reset(id: Id, by: By) -> Response:
    """Resets a sandbox: nothing runs, /work and /tmp are empty."""
    await by.call(id, "reset")
    return nothing()


@serves(command_router, protocol.MACHINE)
async def replace_machine(id: Id, by: By, body: MachineBody | None = None) -> Response:
    """As a reset, but on another machine, where nothing of the sandbox has run before. It keeps its
    id, and takes as long as a start. After an error it has its old machine."""
    await by.call(id, "renew", image=body.image if body else "")
    return nothing()


@serves(command_router, protocol.KILL_PROCESSES)
async def kill_processes(id: Id, by: By) -> Response:
    """Kills everything that the agent started. Files are kept."""
    await by.call(id, "kill_processes")
    return nothing()


class ClosingResponse(StreamingResponse):
    """Also closes its lines if the client disconnects while none of them is awaited."""

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        finally:
            # A task of its own, because this one is cancelled when the client disconnects.
            await asyncio.shield(asyncio.ensure_future(self.body_iterator.aclose()))


async def _lines(pieces: AsyncGenerator[tuple[str, bytes | int], None]) -> AsyncIterator[bytes]:
    try:
        async with contextlib.aclosing(
            pieces
        ):  # closing kills the process if the client disconnects
            async for kind, value in pieces:
                text = base64.b64encode(value).decode() if isinstance(value, bytes) else value
                yield json.dumps({kind: text}).encode() + b"\n"
    except Exception as error:
        refusal = refusal_of(error)  # the status is already sent, so the last line reports it
        if refusal.kind == "internal":
            log.exception("a stream failed")
        yield json.dumps(refusal.content()).encode() + b"\n"


MAX_READ = 64 << 20

file_router = APIRouter(tags=["files"], responses=ERRORS)
FilePath = Annotated[str, Query(description="Relative to /work, or absolute.", max_length=4096)]
Count = Annotated[int, Query(ge=0, le=MAX_READ, description="Maximum number of bytes.")]
FORM = "One file per part; the part's name is its path below {}, percent-encoded."


@serves(file_router, protocol.READ, response_class=Response, responses=binary("The content."))
async def read_file(id: Id, by: By, path: FilePath, max_bytes: Count = 1 << 20) -> Response:
    """Returns the beginning of a file. 404 if the agent cannot read the path as a regular file or
    if the path contains a symbolic link; 422 for a path with `..`."""
    data = await by.call(id, "read", path=path, max_bytes=max_bytes)
    return Response(data, media_type=BYTES)


@file_router.put(
    "/v1/sandboxes/{id}/files", status_code=204, openapi_extra=raw_body("The content.")
)
async def write_file(id: Id, by: By, path: FilePath, request: Request) -> Response:
    """Writes one file below /work, and creates missing directories; links are not followed."""
    await by.call(id, "write", files={path: await request.body()})
    return nothing()


def _form(root: str) -> dict[str, Any]:
    return raw_body(FORM.format(root), "multipart/form-data")


async def _files(request: Request) -> dict[str, bytes]:
    parts = parse_form(request.headers.get("content-type", ""), await request.body())
    return {unquote(part.name): part.data for part in parts}


@serves(file_router, protocol.WRITE, openapi_extra=_form("/work"))
async def write_files(id: Id, by: By, request: Request) -> Response:
    """Writes several files below /work."""
    await by.call(id, "write", files=await _files(request))
    return nothing()


@serves(file_router, protocol.REPLACE, openapi_extra=_form("the directory"))
async def replace_directory(id: Id, by: By, path: FilePath, request: Request) -> Response:
    """Kills everything that the agent started, removes whatever is at an absolute path, and makes
    it a directory with these files only, which the agent's user alone may enter. For tests that
    judge what the agent left."""
    await by.call(id, "replace_directory", path=path, files=await _files(request))
    return nothing()


@serves(file_router, protocol.LIST)
async def list_directory(id: Id, by: By, path: FilePath = "/work") -> Response:
    """Lists a directory."""
    return reply(await by.call(id, "list", path=path))


@serves(file_router, protocol.PACK, response_class=Response, responses=binary("A tar.", TAR))
async def download(id: Id, by: By, path: FilePath = "/work") -> Response:
    """Returns a directory as a tar. Its content comes from the agent: do not trust it when you
    unpack it. 409 if it is larger than 256 MiB, or than the buffer of your token."""
    return Response(await by.download(id, path), media_type=TAR)


@serves(file_router, protocol.UNPACK, openapi_extra=raw_body("A plain tar.", TAR))
async def upload(id: Id, by: By, request: Request, path: FilePath = "/work") -> Response:
    """Unpacks a tar into a directory, with the agent's permissions. 422 for devices, hard links,
    links that may lead out of it, absolute paths or `..`; nothing is unpacked then."""
    archive = await request.body()
    await asyncio.to_thread(uploads.checked, archive)  # it may take a while
    await by.call(id, "unpack", archive=archive, path=path)
    return nothing()

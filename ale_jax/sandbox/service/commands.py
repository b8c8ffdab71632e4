"""Routes: what runs in a sandbox."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
from collections.abc import AsyncIterator

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse

from ale_jax.sandbox.api import ExecResult, ProcessResult
from ale_jax.sandbox.service.bodies import (
    InterruptBody,
    ProcessBody,
    RunBody,
    SessionBody,
)
from ale_jax.sandbox.service.errors import refusal_of
from ale_jax.sandbox.service.replies import ERRORS, NDJSON, By, Id, Session, nothing, reply

router = APIRouter(prefix="/v1/sandboxes/{id}", tags=["commands"], responses=ERRORS)

log = logging.getLogger(__name__)


@router.post("/run", response_model=ExecResult)
async def run(id: Id, body: RunBody, by: By) -> Response:
    """Runs a command in a session and answers with its output. A non-zero exit code is data.

    It runs to its end even if the client hangs up. Repeat the request with the same `X-Request-Id`
    to be told how it ended.
    """
    arguments = {"command": body.command, "timeout": body.timeout, "session": body.session}
    return reply(await by.call(id, "run", **arguments))


@router.post("/exec", response_model=ProcessResult)
async def exec_process(id: Id, body: ProcessBody, by: By) -> Response:
    """Runs one process, outside every session, and answers with head and tail of its output."""
    return reply(await by.call(id, "exec", **body.arguments()))


@router.post("/spawn", response_class=StreamingResponse, responses={200: {"content": {NDJSON: {}}}})
async def spawn(id: Id, body: ProcessBody, by: By) -> Response:
    """Starts one process and streams what it writes, as lines of JSON.

    `{"stdout": BASE64}` and `{"stderr": BASE64}` as they come; the last line is `{"exit": CODE}`,
    or `{"error": {...}}`. A stream without such an end broke. If the client hangs up, the process
    is ended. Without `timeout` it has no limit. A spawn cannot be repeated by its request id.
    """
    # Not server-sent events: a browser repeats those by itself, which would start the process anew,
    # and they cannot carry bytes either.
    lines = _lines(await by.stream(id, **body.arguments()))
    return StreamingResponse(lines, media_type=NDJSON, headers={"Cache-Control": "no-store"})


@router.post("/sessions", status_code=204)
async def open_session(id: Id, body: SessionBody, by: By) -> Response:
    """Opens a further bash. 409 if there is one of that name."""
    await by.call(id, "open_session", name=body.name, env=body.env, cwd=body.cwd)
    return nothing()


@router.delete("/sessions/{session}", status_code=204)
async def close_session(id: Id, session: Session, by: By) -> Response:
    """Kills all that runs in it. 409 if there is none of that name."""
    await by.call(id, "close_session", name=session)
    return nothing()


@router.post("/sessions/{session}/interrupt")
async def interrupt(id: Id, session: Session, body: InterruptBody, by: By) -> Response:
    """Ctrl-C for the session's command. `{"interrupted": false}` if none ran."""
    done = await by.call(id, "interrupt", session=session, seconds=body.seconds)
    return reply({"interrupted": done})


@router.post("/reset", status_code=204)
async def reset(id: Id, by: By) -> Response:
    """As new: nothing runs, /work and /tmp are empty."""
    await by.call(id, "reset")
    return nothing()


@router.post("/kill", status_code=204)
async def kill_processes(id: Id, by: By) -> Response:
    """Kills all that the agent started. Files stay."""
    await by.call(id, "kill_processes")
    return nothing()


async def _lines(pieces: AsyncIterator[tuple[str, bytes | int]]) -> AsyncIterator[bytes]:
    try:
        async with contextlib.aclosing(pieces):  # which ends the process if the client hangs up
            async for kind, value in pieces:
                text = base64.b64encode(value).decode() if isinstance(value, bytes) else value
                yield json.dumps({kind: text}).encode() + b"\n"
    except Exception as error:
        refusal = refusal_of(error)  # the status is sent already: the last line tells it
        if refusal.kind == "internal":
            log.exception("a stream failed")
        yield json.dumps(refusal.content()).encode() + b"\n"

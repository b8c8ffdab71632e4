"""What the routes share: who calls, and how an answer is written."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import Depends, Path, Request, Response
from fastapi.responses import JSONResponse

from ale_jax.sandbox.service.bodies import ID
from ale_jax.sandbox.service.caller import Caller
from ale_jax.sandbox.service.errors import refusal_of
from ale_jax.sandbox.service.records import plain

JSON = "application/json"
BYTES = "application/octet-stream"
TAR = "application/x-tar"
NDJSON = "application/x-ndjson"

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": text,
        "content": {JSON: {"example": {"error": {"kind": "...", "message": "..."}}}},
    }
    for status, text in (
        (401, "No token, or a wrong one."),
        (404, "There is no such sandbox of yours, or no such file."),
        (409, "The sandbox refused, or the request id stood for another request."),
        (410, "The sandbox is gone."),
        (422, "The request asks for what cannot be."),
    )
}


async def caller_of(request: Request) -> Caller:
    state = request.app.state
    return Caller(state.pool, state.owners, request.scope["tenant"])


By = Annotated[Caller, Depends(caller_of)]
Id = Annotated[str, Path(description="The sandbox's id.", max_length=256)]
Session = Annotated[str, Path(description="The session's name.", pattern=ID)]


def reply(value: Any, status: int = 200) -> Response:
    """A record, or plain data."""
    return Response(json.dumps(plain(value)), status, media_type=JSON)


def nothing() -> Response:
    return Response(status_code=204)


def binary(description: str, kind: str = BYTES) -> dict[int | str, dict[str, Any]]:
    """For the documentation: an answer of raw bytes."""
    content = {kind: {"schema": {"type": "string", "format": "binary"}}}
    return {200: {"description": description, "content": content}}


def raw_body(description: str, kind: str = BYTES) -> dict[str, Any]:
    """For the documentation: a request whose body is raw bytes."""
    content = {kind: {"schema": {"type": "string", "format": "binary"}}}
    return {"requestBody": {"description": description, "required": True, "content": content}}


def error_reply(request: Request, error: Exception) -> Response:
    """`error` as a client sees it, and its kind for the metrics."""
    refusal = refusal_of(error)
    request.scope["failure"] = refusal.kind
    return JSONResponse(refusal.content(), refusal.status, dict(refusal.headers()))

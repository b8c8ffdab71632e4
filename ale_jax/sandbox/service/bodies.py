"""Bodies of requests, in which an unknown field is refused, and what all routes share to reply."""

from __future__ import annotations

import base64
import difflib
import inspect
import json
from typing import Annotated, Any, Literal

from fastapi import Depends, Path, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, WithJsonSchema, model_validator

from ale_jax.sandbox.pool.api import StartRequest
from ale_jax.sandbox.runner.wire import MAIN
from ale_jax.sandbox.service.caller import Caller
from ale_jax.sandbox.service.records import plain, refusal_of
from ale_jax.sandbox.spec import SandboxSpec

ID = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$"
MAX_COUNT = 256


def _schema(record: type) -> dict[str, Any]:
    """Whole: a reference in it would lead nowhere in the service's documentation."""
    schema = TypeAdapter(record).json_schema()
    inner = schema.pop("$defs", {})
    for name, field in schema["properties"].items():
        if "$ref" in field:
            schema["properties"][name] = inner[field["$ref"].rpartition("/")[2]]
    return schema


SpecJson = Annotated[
    dict[str, Any],
    WithJsonSchema(_schema(SandboxSpec)),
    Field(default_factory=dict, description=inspect.getdoc(SandboxSpec)),
]
Timeout = Annotated[float | None, Field(gt=0, description="Seconds; null: command_seconds.")]
Env = Annotated[dict[str, str], Field(default_factory=dict, description="Further variables.")]
Cwd = Annotated[str, Field(description="Where it starts.")]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _names(cls, values: Any) -> Any:
        for name in values if isinstance(values, dict) else ():
            if name not in cls.model_fields:
                near = difflib.get_close_matches(str(name), cls.model_fields, n=1)
                choice = ", ".join(cls.model_fields)
                hint = f"did you mean {near[0]!r}?" if near else f"choose among {choice}"
                raise ValueError(f"there is no field {name!r:.80}: {hint}")
        return values


class StartBody(Body):
    """A sandbox to start."""

    spec: SpecJson
    id: str = Field("", pattern=f"{ID}|^$", description="Yours; empty: the pool chooses.")
    labels: dict[str, str] = Field(default_factory=dict, description="For people.")
    idle_seconds: float = Field(0.0, ge=0, description="Of life without use; 0: no limit.")
    deadline_seconds: float = Field(0.0, ge=0, description="Of life altogether; 0: no limit.")
    recreate: bool = Field(False, description="If it is lost, it is started again, empty.")
    snapshot: str = Field("", description="Id of a snapshot whose files it starts with.")

    def request(self) -> StartRequest:
        """Errors: ValueError."""
        values = {name: getattr(self, name) for name in StartBody.model_fields if name != "spec"}
        return StartRequest(spec=SandboxSpec.from_json(self.spec), **values)


class StartManyBody(StartBody):
    """Like sandboxes: the first `count` that are ready out of `count + spare`. The pool chooses
    their ids."""

    id: Literal[""] = Field("", description="Left out.")
    count: int = Field(ge=1, le=MAX_COUNT)
    spare: int = Field(0, ge=0, le=MAX_COUNT)


class RunBody(Body):
    """A command for a session."""

    command: str = Field(description="For bash; directory and variables stay for the next one.")
    timeout: Timeout = None
    session: str = Field(MAIN, description="Its name; this one is open from the start.")


class ProcessBody(Body):
    """A process of its own, outside every session."""

    argv: list[str] | str = Field(description="Its words, or a command line for bash.")
    timeout: Timeout = None
    cwd: Cwd = "/work"
    env: Env
    stdin: str = Field("", description="Its standard input, in base64.")

    def arguments(self) -> dict[str, Any]:
        """For `exec` and `stream` of a pool. Errors: ValueError."""
        try:
            stdin = base64.b64decode(self.stdin, validate=True)
        except ValueError as error:
            raise ValueError(f"stdin is not base64: {error}") from error
        values = {name: getattr(self, name) for name in ("argv", "timeout", "cwd", "env")}
        return values | {"stdin": stdin}


class SessionBody(Body):
    """A further session."""

    name: str = Field(pattern=ID)
    env: Env
    cwd: Cwd = "/work"


class InterruptBody(Body):
    seconds: float = Field(2.0, ge=0, le=60, description="Until what ignores Ctrl-C is killed.")


class ForkBody(Body):
    count: int = Field(1, ge=1, le=MAX_COUNT)


class RestoreBody(Body):
    snapshot: str = Field(description="Id of a snapshot.")


class WarmBody(Body):
    """Sandboxes that are kept ready on each node."""

    spec: SpecJson
    count: int = Field(ge=0, le=MAX_COUNT, description="0: none.")


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

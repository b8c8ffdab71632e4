"""Bodies of requests, in which an unknown field is refused, and what all routes use to respond."""

from __future__ import annotations

import base64
import dataclasses
import difflib
import inspect
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar, get_origin

from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.responses import JSONResponse
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from ale_jax.sandbox.async_sandbox import MAX_SIZE
from ale_jax.sandbox.pool.api import StartRequest
from ale_jax.sandbox.runner.wire import MAIN
from ale_jax.sandbox.service.caller import Caller
from ale_jax.sandbox.service.protocol import Endpoint, plain, refusal_of
from ale_jax.sandbox.spec import SandboxSpec

Route = TypeVar("Route", bound=Callable[..., Any])

ID = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$"
REQUEST_ID = r"^[A-Za-z0-9._-]{1,128}$"
MAX_COUNT = 256
# As with a spec's MAX_TEXT_BYTES: a pool remembers them, and shows those of all sandboxes at once.
MAX_LABELS, MAX_LABELS_BYTES = 64, 16 << 10


def _schema(record: type) -> dict[str, Any]:
    """Without references, because the service's documentation could not resolve them."""
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
Env = Annotated[
    dict[str, str], Field(default_factory=dict, description="Additional environment variables.")
]
Name = Annotated[str, Field(pattern=ID, description="Chosen by you.")]
Cwd = Annotated[str, Field(description="Working directory.")]
User = Annotated[
    str, Field(description="Its name in /etc/passwd; another than the spec's needs its user root.")
]


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
    id: str = Field("", pattern=f"{ID}|^$", description="Chosen by you; empty: by the pool.")
    labels: dict[str, str] = Field(
        default_factory=dict,
        description=f"Shown in the status. At most {MAX_LABELS}, with {MAX_LABELS_BYTES} bytes of"
        " JSON together.",
    )
    idle_seconds: float = Field(
        0.0, ge=0, description="Limit on time without use; 0: as long as your token may have."
    )
    deadline_seconds: float = Field(
        0.0, ge=0, description="Limit on time since start or renewal; 0: as for idle_seconds."
    )
    recreate: bool = Field(
        False, description="If it is lost, start it again with its initial files."
    )
    snapshot: str = Field("", description="Id of a snapshot with its initial files.")

    @field_validator("labels")
    @classmethod
    def _few(cls, labels: dict[str, str]) -> dict[str, str]:
        if len(labels) > MAX_LABELS:
            raise ValueError(f"there are {len(labels)}: use at most {MAX_LABELS}")
        if (size := len(json.dumps(labels))) > MAX_LABELS_BYTES:
            limit = f"use at most {MAX_LABELS_BYTES}, and put long values into files"
            raise ValueError(f"they have {size} bytes of JSON: {limit}")
        return labels

    def request(self) -> StartRequest:
        """Errors: ValueError."""
        values = {name: getattr(self, name) for name in StartBody.model_fields if name != "spec"}
        return StartRequest(spec=SandboxSpec.from_json(self.spec), **values)


class StartManyBody(StartBody):
    """Identical sandboxes: the first `count` that are ready out of `count + spare`. The pool
    chooses their ids."""

    id: Literal[""] = Field("", description="Not allowed.")
    count: int = Field(ge=1, le=MAX_COUNT)
    spare: int = Field(0, ge=0, le=MAX_COUNT)


class RunBody(Body):
    """A command for a session."""

    command: str = Field(description="For bash; the next one keeps its directory and variables.")
    timeout: Timeout = None
    session: str = Field(MAIN, description="Its name; the default one is open from the start.")


Lines = Annotated[int, Field(ge=0, le=MAX_SIZE, description="Of the terminal; 0: programs choose.")]


class BeginBody(Body):
    """A command for a session's terminal."""

    command: str = Field(description="For bash. It has no time limit.")
    rows: Lines = 0
    columns: Lines = 0


class SendBody(Body):
    """Input for the command on a session's terminal."""

    text: str = Field(description="Typed as it is; end a line with a newline.")


class ExpectBody(Body):
    """What to wait for in the output of the command on a session's terminal."""

    pattern: str | None = Field(
        None, description="Regular expression (Python's re, on bytes); null: until it ends."
    )
    timeout: Timeout = None


class ProcessBody(Body):
    """A process outside every session."""

    argv: Annotated[list[str], Field(min_length=1)] | str = Field(
        description="Arguments, or a command line for bash."
    )
    timeout: Timeout = None
    cwd: Cwd = "/work"
    env: Env
    user: User = ""
    stdin: str = Field("", description="Standard input, in base64.")

    def arguments(self) -> dict[str, Any]:
        """For `exec` and `stream` of a pool. Errors: ValueError."""
        try:
            stdin = base64.b64decode(self.stdin, validate=True)
        except ValueError as error:
            raise ValueError(f"stdin is not base64: {error}") from error
        names = ("argv", "timeout", "cwd", "env", "user")
        values = {name: getattr(self, name) for name in names}
        return values | {"stdin": stdin}


class JobBody(ProcessBody):
    """A process that goes on without you. timeout: null: no limit."""

    name: Name


class SessionBody(Body):
    """Another session."""

    name: Name
    env: Env
    cwd: Cwd = "/work"
    user: User = ""


class InterruptBody(Body):
    seconds: float = Field(
        2.0, ge=0, le=60, description="Time until it is killed if it ignores Ctrl-C."
    )


class ForkBody(Body):
    count: int = Field(1, ge=1, le=MAX_COUNT)


class RenewBody(Body):
    seconds: float = Field(
        0.0, ge=0, description="Time to live from now; 0: as long as your token may have."
    )


class MachineBody(Body):
    image: str = Field("", description="Of that machine, up to the next reset; empty: the spec's.")


class RestoreBody(Body):
    snapshot: str = Field(description="Id of a snapshot.")


class WarmBody(Body):
    """Sandboxes to keep ready on each node."""

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
        (403, "The token may not have as much as that."),
        (404, "You have no such sandbox, or there is no such file."),
        (409, "The sandbox refused, or the request id was used for another request."),
        (410, "The sandbox is gone."),
        (422, "The request is invalid."),
        (429, "The token makes too many calls, or transfers too much: try again later."),
    )
}


async def caller_of(request: Request) -> Caller:
    state = request.app.state
    ticket = request.scope["ticket"]
    ticket.keep(ticket.received_bytes)  # the body was read, and may be shorter than it could be
    scope, pool, key = request.scope, state.pool, request.scope.get("request_key")
    if key and hasattr(pool, "for_request"):  # it keeps the outcomes of repeated requests
        pool = pool.for_request(*key)
    return Caller(pool, scope["tenant"], ticket)


By = Annotated[Caller, Depends(caller_of)]
Id = Annotated[str, Path(description="The sandbox's id.", max_length=256)]
Session = Annotated[str, Path(description="The session's name.", pattern=ID)]
Job = Annotated[str, Path(description="The job's name.", pattern=ID)]
RequestId = Annotated[str, Path(description="Its X-Request-Id.", pattern=REQUEST_ID)]


def serves(
    router: APIRouter, endpoint: Endpoint[Any], **documented: Any
) -> Callable[[Route], Route]:
    """Registers a function as what answers an operation. documented: further options of a route."""
    is_record = dataclasses.is_dataclass(endpoint.answer) or get_origin(endpoint.answer) is list
    return router.api_route(
        endpoint.path,
        methods=[endpoint.method],
        status_code=endpoint.status,
        response_model=endpoint.answer if is_record else None,
        **documented,
    )


def reply(value: Any, status: int = 200) -> Response:
    """Responds with a record or plain data."""
    return Response(json.dumps(plain(value)), status, media_type=JSON)


def nothing() -> Response:
    return Response(status_code=204)


def binary(description: str, kind: str = BYTES) -> dict[int | str, dict[str, Any]]:
    """Documents a response of raw bytes."""
    content = {kind: {"schema": {"type": "string", "format": "binary"}}}
    return {200: {"description": description, "content": content}}


def raw_body(description: str, kind: str = BYTES) -> dict[str, Any]:
    """Documents a request whose body is raw bytes."""
    content = {kind: {"schema": {"type": "string", "format": "binary"}}}
    return {"requestBody": {"description": description, "required": True, "content": content}}


def error_reply(request: Request, error: Exception) -> Response:
    """Returns `error` as a client sees it, and records its kind for the metrics."""
    refusal = refusal_of(error)
    request.scope["failure"] = refusal.kind
    return JSONResponse(refusal.content(), refusal.status, dict(refusal.headers()))

"""The service as an ASGI application over a pool, and its documentation as one page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException

from ale_jax.sandbox.pool.api import SandboxPool
from ale_jax.sandbox.service import operations, routes, terminal
from ale_jax.sandbox.service.access import ServiceSettings, Tokens
from ale_jax.sandbox.service.bodies import error_reply
from ale_jax.sandbox.service.guard import Guard
from ale_jax.sandbox.service.metrics import Metrics
from ale_jax.sandbox.service.protocol import KINDS, Refusal

STYLE = (
    "body{font:15px/1.45 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "h3{font-family:monospace;margin-bottom:0}td{padding:0 1em 0 0;vertical-align:top}"
    "code{background:#f1f1f1}table{font-size:90%}"
)
Schema = Mapping[str, Any]

router = APIRouter()


@router.get("/docs", include_in_schema=False)
async def show_documentation(request: Request) -> HTMLResponse:
    return HTMLResponse("\n".join(_page(request.app.openapi())))


def _page(schema: Schema) -> Iterator[str]:
    info = schema["info"]
    yield f"<!doctype html><meta charset=utf-8><title>{escape(info['title'])}</title>"
    yield f"<style>{STYLE}</style><h1>{escape(info['title'])}</h1>{_text(info['description'])}"
    yield "<p>For programs: <a href=openapi.json>openapi.json</a></p>"
    tag = None
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            if operation["tags"] != tag:
                tag = operation["tags"]
                yield f"<h2>{escape(', '.join(tag))}</h2>"
            yield f"<h3>{method.upper()} {escape(path)}</h3>{_text(operation['description'])}"
            yield from _table(_inputs(schema, operation))


def _inputs(schema: Schema, operation: Schema) -> Iterator[tuple[str, Schema, str]]:
    """Yields name, schema and description of each field that a request takes."""
    for each in operation.get("parameters", ()):
        if each["in"] == "query":
            yield f"?{each['name']}", each["schema"], each.get("description", "")
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        body = _resolved(schema, content["schema"])
        if "properties" not in body:
            yield kind, body, operation["requestBody"].get("description", "")
        for name, field in body.get("properties", {}).items():
            yield from _field(schema, name, field)


def _field(schema: Schema, name: str, field: Schema) -> Iterator[tuple[str, Schema, str]]:
    yield name, field, field.get("description", "")
    for inner, value in _resolved(schema, field).get("properties", {}).items():
        yield f"{name}.{inner}", value, value.get("description", "")


def _table(rows: Iterator[tuple[str, Schema, str]]) -> Iterator[str]:
    yield "<table>"
    for name, field, text in rows:
        default = f"default {field['default']!r}" if "default" in field else ""
        cells = (f"<code>{escape(name)}</code>", escape(_kind(field)), escape(default), _line(text))
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    yield "</table>"


def _kind(field: Schema) -> str:
    if "anyOf" in field:
        return " or ".join(_kind(each) for each in field["anyOf"])
    kind = field.get("type", "object")
    return f"{kind} of {_kind(field['items'])}" if "items" in field else kind


def _resolved(schema: Schema, field: Schema) -> Schema:
    if "$ref" not in field:
        return field
    return schema["components"]["schemas"].get(field["$ref"].rpartition("/")[2], {})


def _text(markdown: str) -> str:
    return "".join(f"<p>{_line(part)}</p>" for part in markdown.strip().split("\n\n"))


def _line(markdown: str) -> str:
    html = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(markdown))
    return re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", html)


DESCRIPTION = """
Sandboxes over HTTP: isolated machines in which agents run commands and keep files.

**Authentication.** Send `Authorization: Bearer TOKEN`. A sandbox belongs to the token that started
it; other tokens get 404 for it, and may have the same id for one of their own. An administrator
calls the sandbox ID of another token NAME~ID. A service without tokens accepts connections only
from its own machine.

**Repeated requests.** A POST, PUT or DELETE with the header `X-Request-Id` may be sent again: for
some minutes, the same request with the same id is executed only once and gets the same answer. A
repeat that arrives while the first request is in progress waits for it. Another request with the
same id is refused (409).

**Errors** have one form: `{"error": {"kind": ..., "message": ..., "remedy": ...}}`. The outcome of
a command is never an error: check its `exit_code`.

**Monitoring.** The page `/fleet` shows the current nodes, sandboxes and events.

**Terminal.** A WebSocket at `/v1/sandboxes/{id}/terminal?rows=24&columns=80`: binary frames are
bytes, text frames are JSON (`{"resize": [ROWS, COLUMNS]}` from you, `{"exit": CODE}` at the end).
With `rows=0` the command has pipes: output frames begin with a byte, 1 for stdout and 2 for stderr,
an empty frame from you ends the input, and `{"read": BYTES}` acknowledges each frame of input.
`user` is as for exec. A command that is too long for a URL comes in your first binary frames, whose
size together is `command_bytes`.
Of input that the command has not read, 512 KiB or 256 frames are kept; more has to wait, and ends
it after 30 s (429 `not_read`).

**Ports.** A WebSocket at `/v1/sandboxes/{id}/connect?port=N` is one connection to port N of the
sandbox's loopback, with the frames of a command on pipes.

**Relay.** A WebSocket at `/v1/sandboxes/{id}/relay?port=N`: the connections that programs in the
sandbox make to port N of its loopback, over binary frames, for you to serve. `{"open": true}` comes
first. `ale_jax/sandbox/relay.py` defines the bytes.
"""
ROUTERS = (
    routes.sandbox_router,
    routes.command_router,
    routes.file_router,
    operations.pool_router,
    operations.health_router,
    operations.fleet_router,
    router,
    terminal.router,
)


def create_app(
    pool: SandboxPool,
    settings: ServiceSettings | None = None,
    tokens: Tokens | None = None,
    fronts: Sequence[APIRouter] = (),
) -> Guard:
    """fronts: additional routers (`rock.front`, `gem.front`). The caller still has to close the
    pool.

    Errors: ValueError for a service that other machines can reach but that requires no token.
    """
    settings, tokens = settings or ServiceSettings(), tokens or Tokens({})
    refuse_openness(settings, tokens)
    app = FastAPI(
        title="ALE-JAX sandboxes",
        version="1",
        description=DESCRIPTION,
        docs_url=None,  # FastAPI's page loads its script from another host
        redoc_url=None,
    )
    app.state.pool, app.state.metrics = pool, Metrics()
    for router in (*ROUTERS, *fronts):
        app.include_router(router)
    for kind in (Refusal, *(kind for kind, *_ in KINDS), Exception):
        app.add_exception_handler(kind, error_reply)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.state.guard = Guard(app, settings, tokens, app.state.metrics)
    return app.state.guard


def refuse_openness(settings: ServiceSettings, tokens: Tokens) -> None:
    """Errors: ValueError for a service that other machines can reach but that requires no token."""
    if not tokens and not settings.local:
        raise ValueError(
            f"host {settings.host!r} can be reached from other machines, but there is no token:"
            " pass a file of tokens, or host 127.0.0.1"
        )


def _invalid(request: Request, error: RequestValidationError) -> Response:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        refusal = Refusal(400, "bad_json", f"the body is not JSON: {first['ctx']['error']}")
    else:
        where = ".".join(str(each) for each in first["loc"] if each != "body")
        text = first["msg"].removeprefix("Value error, ")
        refusal = Refusal(422, "invalid", f"{where}: {text}" if where else text)
    return error_reply(request, refusal)


def _http(request: Request, error: HTTPException) -> Response:
    kind = {404: "no_route", 405: "no_method"}.get(error.status_code, "http")
    return error_reply(request, Refusal(error.status_code, kind, str(error.detail), "see /docs"))

"""The service as one ASGI application over a pool."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from ale_jax.sandbox.pool.api import SandboxPool
from ale_jax.sandbox.service import (
    commands,
    docs_page,
    files,
    fleet,
    health,
    operations,
    sandboxes,
    terminal,
)
from ale_jax.sandbox.service.caller import Owners
from ale_jax.sandbox.service.errors import KINDS, Refusal
from ale_jax.sandbox.service.guard import Guard
from ale_jax.sandbox.service.metrics import Metrics
from ale_jax.sandbox.service.replies import error_reply
from ale_jax.sandbox.service.settings import ServiceSettings
from ale_jax.sandbox.service.tokens import Tokens

DESCRIPTION = """
Sandboxes over HTTP: isolated machines in which agents run commands and keep files.

**Who may.** Send `Authorization: Bearer TOKEN`. A sandbox belongs to the token that started it;
others get 404 for it. A service without tokens listens on its own machine only.

**Repeating.** A POST, PUT or DELETE with the header `X-Request-Id` may be sent again: the same id
with the same request is carried out once and answered alike, for some minutes. A repeat that comes
while the first is under way waits for it. The same id with another request is refused (409).

**Errors** have one form: `{"error": {"kind": ..., "message": ..., "remedy": ...}}`. What a command
did is never an error: look at its `exit_code`.

**Watching.** The page `/fleet` shows nodes, sandboxes and events as they are now.

**Terminal.** A WebSocket at `/v1/sandboxes/{id}/terminal?rows=24&columns=80`: binary frames are
bytes, text frames are JSON (`{"resize": [ROWS, COLUMNS]}` from you, at last `{"exit": CODE}`).
"""
ROUTERS = (
    sandboxes.router,
    commands.router,
    files.router,
    operations.router,
    health.router,
    fleet.router,
    docs_page.router,
    terminal.router,
)


def create_app(
    pool: SandboxPool,
    settings: ServiceSettings | None = None,
    tokens: Tokens | None = None,
    fronts: Sequence[APIRouter] = (),
) -> Guard:
    """fronts: further routers (`rock.front`, `gem.front`). The pool stays its owner's to close.

    Errors: ValueError for a service that others could reach and that asks nobody for a token.
    """
    settings, tokens = settings or ServiceSettings(), tokens or Tokens({})
    if not tokens and not settings.local:
        raise ValueError(
            f"host {settings.host!r} can be reached by others, and there is no token:"
            " give a file of tokens, or host 127.0.0.1"
        )
    app = FastAPI(
        title="ALE-JAX sandboxes",
        version="1",
        description=DESCRIPTION,
        docs_url=None,  # FastAPI's page fetches its script from elsewhere
        redoc_url=None,
    )
    app.state.pool, app.state.owners, app.state.metrics = pool, Owners(pool), Metrics()
    for router in (*ROUTERS, *fronts):
        app.include_router(router)
    for kind in (Refusal, *(kind for kind, *_ in KINDS), Exception):
        app.add_exception_handler(kind, error_reply)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    return Guard(app, settings, tokens, app.state.metrics)


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

"""A proxy before an API that records what goes through it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ale_jax.gateway.recording.exchanges import Exchange, append

OF_CONNECTION = (
    "connection",
    "keep-alive",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "host",
)
COMPUTED_ANEW = ("content-length", "content-encoding", "accept-encoding")
NOT_PASSED_ON = frozenset((*OF_CONNECTION, *COMPUTED_ANEW))


def make_recorder(url: str, file: Path) -> Starlette:
    """url: of the API, up to what its paths have in common. Answers are recorded once they are
    whole; a call that was broken off is not."""
    client = httpx.AsyncClient(base_url=url, timeout=None)

    async def pass_on(request: Request) -> Response:
        body = await request.body()
        try:
            asked = json.loads(body) if body else None
        except (ValueError, RecursionError):
            return JSONResponse({"error": {"message": "only JSON is recorded"}}, 400)
        path = request.path_params["path"]
        path = f"/{path}?{request.url.query}" if request.url.query else f"/{path}"
        sent = client.build_request(
            request.method, path.lstrip("/"), content=body, headers=_passed_on(request.headers)
        )
        try:
            answer = await client.send(sent, stream=True)
        except httpx.HTTPError as error:
            return JSONResponse({"error": {"message": f"{url} does not answer: {error!r}"}}, 502)

        async def parts() -> AsyncIterator[bytes]:
            whole = bytearray()
            async with contextlib.aclosing(answer):  # also if the client has gone
                async for part in answer.aiter_bytes():
                    whole += part
                    yield part
            kind = answer.headers.get("content-type", "")
            text = whole.decode("utf-8", "replace")
            append(file, Exchange(path, asked, answer.status_code, kind, text))

        return StreamingResponse(parts(), answer.status_code, _passed_on(answer.headers))

    @contextlib.asynccontextmanager
    async def open_client(app: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    routes = [Route("/v1/{path:path}", pass_on, methods=["GET", "POST"])]
    return Starlette(routes=routes, lifespan=open_client)


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in headers.items() if name.lower() not in NOT_PASSED_ON}

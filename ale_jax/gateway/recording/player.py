"""An API that answers as a recording has it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ale_jax.gateway.recording.exchanges import Exchange, difference

EVENT_STREAM = "text/event-stream"


class Player:
    """Each exchange is played once, in whichever order the requests come; equal ones in the order
    in which they were recorded. left: those that were not played yet."""

    def __init__(self, exchanges: Sequence[Exchange]):
        self.left = list(exchanges)
        routes = [Route("/v1/{path:path}", self._answer, methods=["GET", "POST"])]
        self.app = Starlette(routes=routes)

    async def _answer(self, request: Request) -> Response:
        body = await request.body()
        query = f"?{request.url.query}" if request.url.query else ""
        path = f"/{request.path_params['path']}{query}"
        try:
            asked = json.loads(body) if body else None
        except (ValueError, RecursionError):
            return _refused(400, "the body is no JSON")
        for number, each in enumerate(self.left):
            if each.path == path and not difference(each.request, asked):
                del self.left[number]
                return _played(each)
        return _refused(404, self._why_not(path, asked))

    def _why_not(self, path: str, asked: object) -> str:
        same_path = [each for each in self.left if each.path == path]
        if not same_path:
            return f"no further call of {path} was recorded"
        differs = difference(same_path[0].request, asked)
        return f"no such call of {path} was recorded; from the next one it differs in {differs}"


def _refused(status: int, message: str) -> JSONResponse:
    # Clients do not try again after a 404.
    error = {"message": message, "type": "invalid_request_error", "code": "not_recorded"}
    return JSONResponse({"type": "error", "error": error}, status)


def _played(exchange: Exchange) -> Response:
    if not exchange.kind.startswith(EVENT_STREAM):
        return Response(exchange.answer, exchange.status, media_type=exchange.kind)

    def events() -> Iterator[str]:
        yield from exchange.answer.splitlines(keepends=True)

    return StreamingResponse(events(), exchange.status, media_type=exchange.kind)

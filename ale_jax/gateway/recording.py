"""What an agent and a model said to each other over HTTP, recorded and played back.

    python -m ale_jax.gateway.recording record URL FILE    stands before the API at URL
    python -m ale_jax.gateway.recording replay FILE        answers as the recording has it

The second one tests an agent without a model. At Ctrl-C it says how many calls were not made, and
exits with 1 if there are any. A recording's file has one exchange of request and answer in each
line, without any keys.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ale_jax import strict_json
from ale_jax.gateway.server import served

EVENT_STREAM = "text/event-stream"
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


@dataclasses.dataclass(frozen=True)
class Exchange:
    """A request and its answer. path: with its query, below the API's address. request: JSON; None
    for a GET. kind: the answer's content type."""

    path: str
    request: Any
    status: int
    kind: str
    answer: str


def append(file: Path, exchange: Exchange) -> None:
    """Adds an exchange to a recording. The line is written at once, so that a program that ends
    leaves whole lines."""
    line = json.dumps(dataclasses.asdict(exchange)) + "\n"
    with file.open("a", encoding="utf-8") as recording:
        recording.write(line)


def read(file: Path) -> list[Exchange]:
    """Reads a recording. ValueError, with the line's number, if it is no recording."""
    found = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            fields, rest = strict_json.read_json(line)
            if rest.strip():
                raise ValueError(f"then {rest.strip():.40}")
            exchange = Exchange(**fields)
            types = {"path": str, "status": int, "kind": str, "answer": str}
            wrong = [name for name, kind in types.items() if type(fields[name]) is not kind]
        except (ValueError, TypeError) as error:
            raise ValueError(f"{file}, line {number}: no exchange ({error})") from None
        if wrong or not exchange.path.startswith("/"):
            raise ValueError(f"{file}, line {number}: no exchange ({wrong or exchange.path!r})")
        found.append(exchange)
    return found


def difference(expected: Any, found: Any, place: str = "request") -> str:
    """Returns where two JSON values differ first, and how; empty if they do not."""
    if type(expected) is not type(found) or not isinstance(expected, dict | list):
        same = type(expected) is type(found) and expected == found
        return "" if same else f"{place}: {_short(found)} instead of {_short(expected)}"
    if isinstance(expected, list) and len(expected) != len(found):
        return f"{place}: {len(found)} entries instead of {len(expected)}"
    return next(filter(None, _differences(expected, found, place)), "")


def _differences(expected: Any, found: Any, place: str) -> Iterator[str]:
    if isinstance(expected, list):
        for number, pair in enumerate(zip(expected, found, strict=True)):
            yield difference(*pair, f"{place}.{number}")
        return
    for name in [*expected, *(each for each in found if each not in expected)]:
        if name not in found:
            yield f"{place}.{name} is missing"
        elif name not in expected:
            yield f"{place}.{name} is new"
        else:
            yield difference(expected[name], found[name], f"{place}.{name}")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def make_recorder(url: str, file: Path) -> Starlette:
    """Makes a proxy before an API that records what goes through it. url: of the API, up to what
    its paths have in common. Answers are recorded once they are whole; a call that was broken off
    is not."""
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


def main(arguments: list[str]) -> int:
    """Serves until Ctrl-C or SIGTERM. Returns the exit code: of `replay`, 1 if calls are left."""
    options = _parse(arguments)
    player = None
    try:
        if options.command == "record":
            app = make_recorder(options.url, options.file)
        else:
            player = Player(read(options.file))
            app = player.app
        with served(app, options.host, options.port) as url:
            print(f"listens at {url}", flush=True)
            _wait_for_a_signal()
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    left = player.left if player else []
    if left:
        print(f"{len(left)} calls were not made, first {left[0].path}", file=sys.stderr)
    return 1 if left else 0


def _wait_for_a_signal() -> None:
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    stopped.wait()


def _parse(arguments: list[str]) -> argparse.Namespace:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m ale_jax.gateway.recording", description=__doc__, formatter_class=style
    )
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record", help="record what goes through to an API")
    record.add_argument("url", help="of the API, e.g. http://127.0.0.1:8000/v1")
    replay = commands.add_parser("replay", help="answer as a recording has it")
    for each in (record, replay):
        each.add_argument("file", type=Path)
        each.add_argument("--host", default="127.0.0.1")
        each.add_argument("--port", type=int, default=0, help="0: one that is free")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
